# SPDX-License-Identifier: Apache-2.0
"""The world that synthetic questions ask about: diseases in specialties, and facts that link terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from medflare.core.config import Settings, read_package_table

RELATIONS: tuple[str, ...] = ("symptom", "treatment", "test", "cause", "complication")
"""Relations that every disease has, in the order of their fields in diseases.yaml."""


class Disease(Settings):
    """A disease and one value of each relation; " / " parts a name from its synonyms."""

    disease: str
    symptom: str
    treatment: str
    test: str
    cause: str
    complication: str


Diseases = tuple[Disease, ...]


@lru_cache(maxsize=1)
def diseases_by_specialty() -> dict[str, Diseases]:
    """Return specialty -> its diseases, read once from diseases.yaml."""
    return read_package_table(dict[str, Diseases], Path(__file__).with_name("diseases.yaml"))


@dataclass(frozen=True, slots=True)
class Term:
    """A disease or one of the things linked to it; `names` begins with the preferred one."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Fact:
    """`value` is the `relation` of `disease`, which a specialty (`group`) treats."""

    group: str
    disease: Term
    relation: str
    value: Term


@dataclass(frozen=True, slots=True)
class World:
    """Facts by group and disease, in the order of the tables."""

    facts: tuple[Fact, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fact.group for fact in self.facts))

    def of_kind(self, kind: str) -> tuple[Term, ...]:
        """Return the terms that are values of a relation, or the diseases for "disease"; none twice."""
        if kind == "disease":
            return tuple(dict.fromkeys(fact.disease for fact in self.facts))
        return tuple(dict.fromkeys(fact.value for fact in self.facts if fact.relation == kind))


@cache
def world(diseases: int = 8, groups: int = 10) -> World:
    """Return the first `diseases` of each of the first `groups` specialties.

    Raises:
        ValueError: more than the tables have.
    """
    tables = diseases_by_specialty()
    most = min(map(len, tables.values()))
    if not 2 <= diseases <= most or not 2 <= groups <= len(tables):
        raise ValueError(
            f"{groups} groups of {diseases} diseases; the world has 2 to {len(tables)} groups of 2 to {most}"
        )
    return World(
        tuple(
            fact
            for group in list(tables)[:groups]
            for disease in tables[group][:diseases]
            for fact in _facts(group, disease)
        )
    )


def _facts(group: str, disease: Disease) -> list[Fact]:
    named = _term(disease.disease)
    return [Fact(group, named, relation, _term(getattr(disease, relation))) for relation in RELATIONS]


def _term(names: str) -> Term:
    return Term(tuple(name.strip() for name in names.split(" / ")))
