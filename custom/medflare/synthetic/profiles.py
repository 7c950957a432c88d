# SPDX-License-Identifier: Apache-2.0
"""Hospital profiles: the three of the demo, one nobody trains on, and a family to pretrain on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from medflare.synthetic.scanner import Scanner
from medflare.synthetic.styles.house import STYLES, HouseStyle
from medflare.synthetic.styles.layouts import LAYOUTS
from medflare.synthetic.styles.schools import ABNORMAL, schools

PRETRAINING_SEED = 5_000_000  # far from the seeds of the demo hospitals and of studies over seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class HospitalProfile:
    """What makes one hospital different from the next.

    Attributes:
        name: site name and prefix of patient ids.
        style: how it writes; scanner: how its pictures look.
        prevalence: condition -> multiplier of the base prevalence (1 where absent).
        age: mean and standard deviation in years; women: share of women.
        patients: usual number of patients, for callers that do not choose one.
        seed: of everything random; profiles with the same seed and different settings share no patients.
    """

    name: str
    style: HouseStyle
    scanner: Scanner = field(default_factory=Scanner)
    prevalence: Mapping[str, float] = field(default_factory=dict)
    age: tuple[float, float] = (60.0, 16.0)
    women: float = 0.5
    patients: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.prevalence) - set(ABNORMAL)):
            raise ValueError(f"{self.name}: prevalence names {unknown}; choose from {', '.join(ABNORMAL)}")

    def with_seed(self, seed: int) -> HospitalProfile:
        """The same hospital with other patients, for studies over seeds (0 <= seed < 1000)."""
        if not 0 <= seed < 1000:
            raise ValueError(f"seed is {seed}; expected 0 to 999")
        block = self.seed // PRETRAINING_SEED * PRETRAINING_SEED
        return replace(self, seed=block + self.seed % 1000 + 1000 * seed)


DEMO_HOSPITALS: tuple[HospitalProfile, ...] = (
    HospitalProfile(
        name="site-1",
        style=STYLES["prose"],
        seed=1,
        patients=600,
        age=(64.0, 14.0),
        women=0.46,
        scanner=Scanner(blur=0.35, contrast=1.08, brightness=-0.01, noise=0.012, marker="R"),
        prevalence={
            "cardiomegaly": 1.5,
            "edema": 1.6,
            "pleural effusion": 1.3,
            "support devices": 1.4,
            "lung lesion": 0.6,
            "pneumothorax": 0.7,
        },
    ),
    HospitalProfile(
        name="site-2",
        style=STYLES["structured"],
        seed=2,
        patients=400,
        age=(48.0, 17.0),
        women=0.52,
        scanner=Scanner(
            blur=0.65, contrast=0.90, brightness=0.04, gamma=0.85, noise=0.022, vignette=0.25, marker="L"
        ),
        prevalence={
            "pneumothorax": 2.0,
            "fracture": 2.0,
            "consolidation": 1.3,
            "cardiomegaly": 0.6,
            "edema": 0.5,
        },
    ),
    HospitalProfile(
        name="site-3",
        style=STYLES["british"],
        seed=3,
        patients=250,
        age=(68.0, 12.0),
        women=0.55,
        scanner=Scanner(
            blur=0.45,
            contrast=1.18,
            brightness=-0.04,
            gamma=1.2,
            noise=0.016,
            collimation=0.03,
            marker="",
            bits=16,
        ),
        prevalence={
            "lung lesion": 2.0,
            "pleural other": 2.2,
            "atelectasis": 1.4,
            "pneumonia": 1.5,
            "support devices": 0.5,
            "pneumothorax": 0.6,
        },
    ),
)

UNSEEN_HOSPITAL = HospitalProfile(
    name="hospital-4",
    style=STYLES["registrar"],
    seed=4,
    patients=300,
    age=(57.0, 18.0),
    women=0.50,
    scanner=Scanner(
        blur=0.25,
        contrast=1.0,
        brightness=0.03,
        gamma=1.1,
        noise=0.028,
        vignette=0.4,
        collimation=0.015,
        marker="R",
    ),
    prevalence={"pneumonia": 1.6, "consolidation": 1.3, "pleural effusion": 0.8, "cardiomegaly": 0.9},
)


def pretraining_hospitals(count: int | None = None) -> Iterator[HospitalProfile]:
    """Other hospitals, none of them in any experiment: mixed styles, random machines and prevalences.

    Yields `count` profiles, or for ever when None; profile k is the same whatever `count` is.
    """
    k = 0
    while count is None or k < count:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((PRETRAINING_SEED, k))))
        yield HospitalProfile(
            name=f"pretraining-{k}",
            style=_mixed_style(k, rng),
            scanner=_random_scanner(rng),
            prevalence={c: float(np.exp(rng.normal(0, 0.4))) for c in ABNORMAL},
            age=(float(rng.uniform(45, 70)), 16.0),
            women=float(rng.uniform(0.4, 0.6)),
            seed=PRETRAINING_SEED + k,
        )
        k += 1


def _mixed_style(k: int, rng: np.random.Generator) -> HouseStyle:
    """Random frames, layout and negatives, and a vocabulary mixed condition by condition."""
    words, layouts = list(schools()), list(LAYOUTS)
    common = [c for c in ABNORMAL if c not in ("support devices",)]
    often = rng.permutation(len(common))[: int(rng.integers(5, 8))]
    openings = ["", *(s.opening for s in STYLES.values() if s.opening)]
    return HouseStyle(
        name=f"mixture-{k}",
        frames=words[int(rng.integers(len(words)))],
        layout=layouts[k % len(layouts)],
        vocabulary=words[int(rng.integers(len(words)))],
        borrowed={c: words[int(rng.integers(len(words)))] for c in ABNORMAL},
        negatives=tuple(common[int(i)] for i in np.sort(often)),
        opening=openings[int(rng.integers(len(openings)))],
    )


def _random_scanner(rng: np.random.Generator) -> Scanner:
    return Scanner(
        blur=float(rng.uniform(0.2, 0.8)),
        contrast=float(rng.uniform(0.85, 1.2)),
        brightness=float(rng.uniform(-0.05, 0.05)),
        gamma=float(rng.uniform(0.8, 1.25)),
        noise=float(rng.uniform(0.008, 0.03)),
        vignette=float(rng.uniform(0, 0.5)),
        marker=("", "L", "R")[int(rng.integers(3))],
        collimation=float(rng.choice([0.0, 0.0, 0.02, 0.03])),
    )
