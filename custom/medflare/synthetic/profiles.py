# SPDX-License-Identifier: Apache-2.0
"""Hospitals by style, scanner and patients: those of hospitals.yaml, and a family to pretrain on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator

from medflare.core.config import read_package_table
from medflare.synthetic.scanner import Scanner
from medflare.synthetic.seeds import SeededHospital, first_numbers, random_stream
from medflare.synthetic.styles.house import STYLES, HouseStyle
from medflare.synthetic.styles.layouts import LAYOUTS
from medflare.synthetic.styles.schools import ABNORMAL, schools


@dataclass(frozen=True, slots=True, kw_only=True)
class HospitalProfile(SeededHospital):
    """Profile of one hospital with radiographs: the ways in which it differs from the next.

    Attributes:
        style: how it writes (in hospitals.yaml a name in STYLES); scanner: how its pictures look.
        prevalence: condition -> multiplier of the base prevalence (1 where absent).
        patients: usual number of patients, for callers that do not choose one.
    """

    pretraining_seed: ClassVar[int] = 5_000_000

    style: Annotated[HouseStyle, BeforeValidator(lambda style: STYLES.get(style, style))]
    scanner: Scanner = field(default_factory=Scanner)
    prevalence: Mapping[str, float] = field(default_factory=dict)
    patients: int = 400

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.prevalence) - set(ABNORMAL)):
            raise ValueError(f"{self.name}: prevalence names {unknown}; choose from {', '.join(ABNORMAL)}")


*_TRAINED, UNSEEN_HOSPITAL = read_package_table(
    tuple[HospitalProfile, ...], Path(__file__).with_name("hospitals.yaml")
)
DEMO_HOSPITALS: tuple[HospitalProfile, ...] = tuple(_TRAINED)


def pretraining_hospitals(count: int | None = None) -> Iterator[HospitalProfile]:
    """Yield hospitals of no experiment: mixed styles, random machines and prevalences.

    Args:
        count: how many; None for ever. Profile k is the same whatever `count` is.
    """
    for k in first_numbers(count):
        rng = random_stream(HospitalProfile.pretraining_seed, k)
        yield HospitalProfile(
            name=f"pretraining-{k}",
            style=_mixed_style(k, rng),
            scanner=_random_scanner(rng),
            prevalence={c: float(np.exp(rng.normal(0, 0.4))) for c in ABNORMAL},
            age=(float(rng.uniform(45, 70)), 16.0),
            women=float(rng.uniform(0.4, 0.6)),
            seed=HospitalProfile.pretraining_seed + k,
        )


def _mixed_style(k: int, rng: np.random.Generator) -> HouseStyle:
    """Return random frames, layout and negatives, and a vocabulary mixed condition by condition."""
    names, layouts = list(schools()), list(LAYOUTS)
    common = [c for c in ABNORMAL if c != "support devices"]
    mentioned = rng.permutation(len(common))[: int(rng.integers(5, 8))]
    openings = ["", *(s.opening for s in STYLES.values() if s.opening)]
    return HouseStyle(
        name=f"mixture-{k}",
        frames=names[int(rng.integers(len(names)))],
        layout=layouts[k % len(layouts)],
        vocabulary=names[int(rng.integers(len(names)))],
        borrowed={c: names[int(rng.integers(len(names)))] for c in ABNORMAL},
        negatives=tuple(common[int(i)] for i in np.sort(mentioned)),
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
