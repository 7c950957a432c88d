# SPDX-License-Identifier: Apache-2.0
"""The profile v_p of a patient: age, sex and the covariates that a job names (TAR-12, TAR-13).

Profiles never leave the site. The paper's hashed identifier is off: it is noise that a mixture would split
on.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from medflare.core.config import Settings
from medflare.core.errors import ConfigError, DataError
from medflare.data.records import Study
from medflare.learners.fedtar.mixture import HIGHEST_ENTRY

OLDEST = 100 * HIGHEST_ENTRY
SEXES = {"F": 0.0, "M": 1.0}
KEY_BYTES = 32


class ProfileSettings(Settings):
    """Entries of v_p: age in centuries, sex 0 or 1, the rest in [0, 1]; unknown ones are NaN.

    Attributes:
        age, sex: whether the profile has it.
        covariates: further entries of a study's `extra` and the range each can have, for instance
            {"smoker": (0, 1)}. They must mean the same at every site and not tell sites apart.
    """

    age: bool = True
    sex: bool = True
    covariates: dict[str, tuple[float, float]] = Field(default_factory=dict)
    hash_feature: bool = Field(default=False, description="TAR-12: the paper's hash, keyed at the site")

    @property
    def names(self) -> tuple[str, ...]:
        """The entries of v_p in order."""
        fixed = [name for name, wanted in (("age", self.age), ("sex", self.sex)) if wanted]
        return (*fixed, *self.covariates, *(["hash"] if self.hash_feature else []))


@dataclass(frozen=True, slots=True)
class Profiles:
    """The patients of a site. patients: ids; values: (P, D) up to HIGHEST_ENTRY or NaN, a row each."""

    patients: tuple[str, ...]
    values: Tensor


def profiles(studies: Sequence[Study], settings: ProfileSettings, key: bytes | None = None) -> Profiles:
    """Return v_p of every patient, in order of id.

    Age is the first one known in order of visits: a patient stays the same patient.

    Args:
        key: of this site alone, for `hash_feature`.

    Raises:
        ConfigError: nothing is asked for, or `hash_feature` and there is no key.
        DataError: lists every patient whose age or covariate is impossible or whose sex changes.
    """
    _check(settings, key)
    visits: dict[str, list[Study]] = {}
    for study in sorted(studies, key=_when):
        visits.setdefault(study.patient_id, []).append(study)
    problems: list[str] = []
    rows = [_row(each, settings, key, problems) for each in visits.values()]
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise DataError(
            f"profiles of patients: {'; '.join(problems[:8])}{more}. Correct or empty these entries."
        )
    values = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(settings.names))
    return Profiles(tuple(visits), values)


def hashed(patient: str, key: bytes) -> float:
    """Return a number in [0, 1) for a patient (TAR-12).

    It is an HMAC-SHA256, since a plain hash of an id can be looked up.
    """
    digest = hmac.new(key, patient.encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def site_key(file: Path) -> bytes:
    """Return the key of a site, made when first needed and readable by its owner alone; it never leaves.

    Raises:
        ConfigError: the file holds something else.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_hex(KEY_BYTES) + "\n")
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"{file}: holds no key of {2 * KEY_BYTES} hexadecimal digits. Delete it, and the next run makes "
            "a new one."
        )
    return key


def _check(settings: ProfileSettings, key: bytes | None) -> None:
    if not settings.names:
        raise ConfigError(
            "profile: nothing is left of it. Ask for age, sex or a covariate, or switch it off."
        )
    if settings.hash_feature and (key is None or len(key) < KEY_BYTES):
        raise ConfigError(
            f"profile.hash_feature needs a key of this site, {KEY_BYTES} bytes; see `site_key`."
        )
    for name, (low, high) in settings.covariates.items():
        if not low < high:
            raise ConfigError(
                f"profile.covariates: '{name}' ranges from {low:g} to {high:g}; expected low < high."
            )


def _row(
    visits: Sequence[Study], settings: ProfileSettings, key: bytes | None, problems: list[str]
) -> list[float]:
    """Return one patient's v_p; what is wrong with it goes to `problems`."""
    entries: list[float] = []
    if settings.age:
        ages = [(study, study.age) for study in visits]
        entries.append(_first(ages, "age", 0.0, OLDEST, problems) / 100)
    if settings.sex:
        entries.append(_sex(visits, problems))
    for name, (low, high) in settings.covariates.items():
        given = [(study, study.extra.get(name)) for study in visits]
        entries.append((_first(given, name, low, high, problems) - low) / (high - low))
    if settings.hash_feature and key is not None:
        entries.append(hashed(visits[0].patient_id, key))
    return entries


def _first(
    given: Sequence[tuple[Study, Any]], name: str, low: float, high: float, problems: list[str]
) -> float:
    """Return the first value that is known, NaN if none is."""
    for study, value in given:
        if value is None or value == "":
            continue
        number = _plain(value)
        if low <= number <= high:
            return number
        problems.append(f"{_place(study)}: {name} is {value!r}, expected {low:g} to {high:g} or nothing")
    return math.nan


def _plain(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _sex(visits: Sequence[Study], problems: list[str]) -> float:
    """Return 0 for F, 1 for M, NaN where no visit says it."""
    stated = {study.sex: study for study in visits if study.sex}
    for sex, study in stated.items():
        if sex not in SEXES:
            problems.append(f"{_place(study)}: sex is {sex!r}, expected F, M or nothing")
            return math.nan
    if len(stated) > 1:
        problems.append(f"{_place(stated['M'])}: sex is 'M', and 'F' in study '{stated['F'].study_id}'")
    return SEXES[next(iter(stated))] if len(stated) == 1 else math.nan


def _when(study: Study) -> tuple[str, int, float, str]:
    return study.patient_id, study.visit or 0, study.day or 0.0, study.study_id


def _place(study: Study) -> str:
    row = f" ({study.place})" if study.place else ""
    return f"patient '{study.patient_id}', study '{study.study_id}'{row}"
