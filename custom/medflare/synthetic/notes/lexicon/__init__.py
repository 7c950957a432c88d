# SPDX-License-Identifier: Apache-2.0
"""The words of synthetic notes by specialty; the YAML files of this folder say how entries are written."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import model_validator

from medflare.core.config import Settings, read_package_data

Words = tuple[str, ...]
BySpecialty = dict[str, Words]


class Lexicon(Settings):
    """All words, one field for each top-level key of the files; `complaints` is by part of the body."""

    diseases: BySpecialty
    inherited: BySpecialty
    symptoms: BySpecialty
    signs: BySpecialty
    parts: BySpecialty
    sides: Words
    pains: Words
    complaints: dict[str, Words]
    degrees: Words
    trends: Words
    relatives: Words
    drugs: BySpecialty
    imaging: BySpecialty
    sizes: Words
    labs: BySpecialty
    studies: BySpecialty
    operations: BySpecialty
    therapies: BySpecialty
    suspicions: BySpecialty

    @property
    def specialties(self) -> Words:
        """Every specialty, "general" among them."""
        return tuple(self.diseases)

    @model_validator(mode="after")
    def _same_specialties(self) -> Lexicon:
        for name, field in type(self).model_fields.items():
            if field.annotation == BySpecialty and name != "complaints":
                different = set(getattr(self, name)) ^ set(self.diseases)
                if different:
                    raise ValueError(f"{name} and diseases differ in {', '.join(sorted(different))}")
        return self


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """Return the lexicon, read once."""
    return read_package_data(Lexicon, *sorted(Path(__file__).parent.glob("*.yaml")))
