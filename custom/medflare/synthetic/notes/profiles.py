# SPDX-License-Identifier: Apache-2.0
"""Hospitals by how they document: those of note_hospitals.yaml, and a family to pretrain on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from medflare.core.config import read_package_table
from medflare.synthetic.notes.houses import NotesHouse, note_houses
from medflare.synthetic.notes.lexicon import lexicon
from medflare.synthetic.seeds import SeededHospital, first_numbers, random_stream

PRETRAINING_WITHHELD = 0.35
NOTE_STYLES: Mapping[str, NotesHouse] = note_houses()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotesProfile(SeededHospital):
    """Writing and annotation style of one hospital's notes.

    Attributes:
        style: key of NOTE_STYLES.
        emphasis: specialty -> weight; the words of specialties that are not named do not occur.
        abbreviates: probability of a short form where there is one; units: of a unit after a laboratory
            value; forms: of the dose form in a prescription.
        inside: probability that a degree or course before a problem is marked as part of its span.
        withheld: share of the lexicon that this hospital never uses (the same entries for all that share it).
        notes: usual number of notes.
    """

    pretraining_seed: ClassVar[int] = 6_000_000

    style: str
    emphasis: Mapping[str, float]
    age: tuple[float, float] = (61.0, 15.0)
    abbreviates: float = 0.2
    units: float = 0.5
    forms: float = 0.4
    inside: float = 1.0
    withheld: float = 0.0
    notes: int = 60

    def __post_init__(self) -> None:
        if self.style not in NOTE_STYLES:
            raise ValueError(f"{self.name}: style is {self.style!r}; choose from {', '.join(NOTE_STYLES)}")
        if unknown := sorted(set(self.emphasis) - set(lexicon().specialties)):
            known = ", ".join(lexicon().specialties)
            raise ValueError(f"{self.name}: emphasis names {unknown}; choose from {known}")

    @property
    def house(self) -> NotesHouse:
        return NOTE_STYLES[self.style]


*_TRAINED, UNSEEN_NOTES = read_package_table(
    tuple[NotesProfile, ...], Path(__file__).with_name("note_hospitals.yaml")
)
NOTE_HOSPITALS: tuple[NotesProfile, ...] = tuple(_TRAINED)


def pretraining_note_hospitals(count: int | None = None) -> Iterator[NotesProfile]:
    """Yield hospitals of no experiment: random mixtures, never in the unseen style.

    They do not know a third of the lexicon, so that a model pretrained on them still has words to learn.

    Args:
        count: how many; None for ever. Profile k is the same whatever `count` is.
    """
    styles = [name for name in NOTE_STYLES if name != UNSEEN_NOTES.style]
    specialties = [name for name in lexicon().specialties if name != "general"]
    for k in first_numbers(count):
        rng = random_stream(NotesProfile.pretraining_seed, k)
        chosen = rng.permutation(len(specialties))[: int(rng.integers(3, 7))]
        yield NotesProfile(
            name=f"pretraining-{k}",
            style=styles[k % len(styles)],
            emphasis={specialties[int(i)]: float(rng.uniform(0.5, 3.0)) for i in chosen},
            age=(float(rng.uniform(45, 70)), 16.0),
            women=float(rng.uniform(0.4, 0.6)),
            abbreviates=float(rng.uniform(0.05, 0.9)),
            units=float(rng.uniform(0.1, 0.9)),
            forms=float(rng.uniform(0.2, 0.8)),
            inside=float(rng.random() < 0.75),
            withheld=PRETRAINING_WITHHELD,
            seed=NotesProfile.pretraining_seed + k,
        )
