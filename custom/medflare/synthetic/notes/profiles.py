# SPDX-License-Identifier: Apache-2.0
"""Hospitals by how they document: three of the demo, one nobody trains on, and a family to pretrain on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from medflare.synthetic.notes.houses import NotesHouse, note_houses
from medflare.synthetic.notes.lexicon import lexicon

PRETRAINING_SEED = 6_000_000  # far from the seeds of the demo hospitals and of studies over seeds
PRETRAINING_WITHHELD = 0.35
NOTE_STYLES: Mapping[str, NotesHouse] = note_houses()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotesProfile:
    """How one hospital writes and annotates its notes.

    Attributes:
        name: site name and prefix of patient ids.
        style: key of NOTE_STYLES.
        emphasis: specialty -> weight; the words of specialties that are not named do not occur.
        age: mean and standard deviation in years; women: share of women.
        abbreviates: probability of a short form where there is one; units: of a unit after a laboratory
            value; forms: of the dose form in a prescription.
        inside: probability that a degree or course before a problem is marked as part of its span.
        withheld: share of the lexicon that this hospital never uses (the same entries for all that share it).
        notes: usual number of notes; seed: of everything random.
    """

    name: str
    style: str
    emphasis: Mapping[str, float]
    age: tuple[float, float] = (61.0, 15.0)
    women: float = 0.5
    abbreviates: float = 0.2
    units: float = 0.5
    forms: float = 0.4
    inside: float = 1.0
    withheld: float = 0.0
    notes: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if self.style not in NOTE_STYLES:
            raise ValueError(f"{self.name}: style is {self.style!r}; choose from {', '.join(NOTE_STYLES)}")
        if unknown := sorted(set(self.emphasis) - set(lexicon().specialties)):
            known = ", ".join(lexicon().specialties)
            raise ValueError(f"{self.name}: emphasis names {unknown}; choose from {known}")

    @property
    def house(self) -> NotesHouse:
        return NOTE_STYLES[self.style]

    def with_seed(self, seed: int) -> NotesProfile:
        """The same hospital with other patients, for studies over seeds (0 <= seed < 1000)."""
        if not 0 <= seed < 1000:
            raise ValueError(f"seed is {seed}; expected 0 to 999")
        block = self.seed // PRETRAINING_SEED * PRETRAINING_SEED
        return replace(self, seed=block + self.seed % 1000 + 1000 * seed)


NOTE_HOSPITALS: tuple[NotesProfile, ...] = (
    NotesProfile(
        name="site-1",
        style="narrative",
        emphasis={"cardiology": 4, "pulmonology": 2.5, "endocrinology": 1.5, "nephrology": 1},
        age=(67.0, 13.0),
        women=0.46,
        abbreviates=0.12,
        units=0.3,
        forms=0.5,
        seed=1,
    ),
    NotesProfile(
        name="site-2",
        style="structured",
        emphasis={"oncology": 4, "gastroenterology": 2.5, "infection": 1.5, "endocrinology": 1},
        age=(59.0, 14.0),
        women=0.55,
        abbreviates=0.25,
        units=0.85,
        forms=0.7,
        seed=2,
    ),
    NotesProfile(
        name="site-3",
        style="telegraphic",
        emphasis={"orthopaedics": 3, "psychiatry": 2.5, "neurology": 2, "pulmonology": 0.8},
        age=(48.0, 17.0),
        women=0.51,
        abbreviates=0.85,
        units=0.1,
        forms=0.35,
        inside=0.0,
        seed=3,
    ),
)

UNSEEN_NOTES = NotesProfile(
    name="site-4",
    style="letter",
    emphasis={"cardiology": 1.5, "neurology": 2, "infection": 2, "nephrology": 1.5, "oncology": 1},
    age=(63.0, 17.0),
    women=0.52,
    abbreviates=0.08,
    units=0.7,
    forms=0.35,
    notes=40,
    seed=4,
)


def pretraining_note_hospitals(count: int | None = None) -> Iterator[NotesProfile]:
    """Other hospitals, none of them in any experiment: random mixtures, never in the unseen style.

    They do not know a third of the lexicon, so that a model pretrained on them still has words to learn.
    Yields `count` profiles, or for ever when None; profile k is the same whatever `count` is.
    """
    styles = [name for name in NOTE_STYLES if name != UNSEEN_NOTES.style]
    specialties = [name for name in lexicon().specialties if name != "general"]
    k = 0
    while count is None or k < count:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((PRETRAINING_SEED, k))))
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
            seed=PRETRAINING_SEED + k,
        )
        k += 1
