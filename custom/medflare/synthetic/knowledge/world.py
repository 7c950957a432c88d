# SPDX-License-Identifier: Apache-2.0
"""The world that synthetic questions ask about: diseases in specialties, and facts that link terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from medflare.synthetic.notes.tables import lines

from .lexicon_organs import ORGANS
from .lexicon_systems import SYSTEMS

RELATIONS: tuple[str, ...] = ("symptom", "treatment", "test", "cause", "complication")
"""What is known of every disease, in the order of the tables' columns."""


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
        """The terms that are values of a relation, or the diseases for "disease"; none twice."""
        if kind == "disease":
            return tuple(dict.fromkeys(fact.disease for fact in self.facts))
        return tuple(dict.fromkeys(fact.value for fact in self.facts if fact.relation == kind))


@cache
def world(diseases: int = 8, groups: int = 10) -> World:
    """The first `diseases` of each of the first `groups` specialties.

    Raises:
        ValueError: more than the tables have.
    """
    tables = {group: lines(text) for group, text in {**ORGANS, **SYSTEMS}.items()}
    most = min(map(len, tables.values()))
    if not 2 <= diseases <= most or not 2 <= groups <= len(tables):
        raise ValueError(
            f"{groups} groups of {diseases} diseases; the world has 2 to {len(tables)} groups of 2 to {most}"
        )
    return World(
        tuple(
            fact
            for group in list(tables)[:groups]
            for line in tables[group][:diseases]
            for fact in _facts(group, line)
        )
    )


def _facts(group: str, line: str) -> list[Fact]:
    disease, *values = (_term(column) for column in line.split("|"))
    return [Fact(group, disease, relation, value) for relation, value in zip(RELATIONS, values, strict=True)]


def _term(column: str) -> Term:
    return Term(tuple(name.strip() for name in column.split(" / ")))
