# SPDX-License-Identifier: Apache-2.0
"""Synthetic patients: who they are, when they come, what they have, and how it changes between visits.

Every patient is drawn from its own random streams, keyed by (hospital seed, patient index, purpose), so that
neither their number nor their order matters, and the text never disturbs the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medflare.synthetic.anatomy import Anatomy
from medflare.synthetic.findings import DEVICES, ChestFinding
from medflare.synthetic.profiles import HospitalProfile
from medflare.synthetic.seeds import random_stream

Sex = Literal["F", "M"]
STREAMS = {"person": 0, "course": 1, "anatomy": 2, "exposure": 3, "wording": 4, "progress": 5, "schedule": 6}
MAX_FINDINGS = 3  # besides devices, so that reports stay within about 60 words

# condition -> prevalence at 60 years, log growth per 20 years, factor for men, days it lasts (0 = always)
EPIDEMIOLOGY: Mapping[str, tuple[float, float, float, float]] = {
    "enlarged cardiomediastinum": (0.08, 0.25, 1.1, 0),
    "cardiomegaly": (0.17, 0.40, 0.9, 0),
    "edema": (0.10, 0.35, 1.0, 12),
    "pleural effusion": (0.16, 0.30, 1.0, 40),
    "pneumothorax": (0.09, -0.30, 1.5, 20),
    "consolidation": (0.11, 0.05, 1.0, 25),
    "pneumonia": (0.10, 0.00, 1.0, 20),
    "lung opacity": (0.11, 0.10, 1.0, 40),
    "lung lesion": (0.10, 0.30, 1.3, 0),
    "atelectasis": (0.13, 0.20, 1.0, 20),
    "pleural other": (0.08, 0.30, 1.5, 0),
    "fracture": (0.08, 0.20, 1.2, 120),
    "support devices": (0.16, 0.20, 1.0, 30),
}
_PATCHES = ("lung opacity", "lung lesion", "consolidation", "pneumonia")
_TWO_SIDED = {"lung opacity": 0.2, "pneumonia": 0.2, "atelectasis": 0.25, "pleural effusion": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticVisit:
    """One visit: days since the patient's first, age in years then, and what is found (resolved ones too)."""

    day: int
    age: int
    findings: tuple[ChestFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticPatient:
    """A person with visits; `index` is the number in the hospital, from 0."""

    index: int
    age: int  # years at the first visit
    sex: Sex
    visits: tuple[SyntheticVisit, ...]


def stream(seed: int, patient: int, purpose: str, visit: int = 0) -> np.random.Generator:
    """Return the random stream of one purpose of one patient (and visit)."""
    return random_stream(seed, patient, STREAMS[purpose], visit)


def draw_patient(hospital: HospitalProfile, index: int, visits: tuple[int, int] = (1, 1)) -> SyntheticPatient:
    """Draw one patient of a hospital.

    Args:
        visits: fewest and most visits.
    """
    person, course = stream(hospital.seed, index, "person"), stream(hospital.seed, index, "course")
    years = int(np.clip(round(person.normal(*hospital.age)), 18, 96))
    sex: Sex = "F" if person.random() < hospital.women else "M"
    count = int(person.integers(visits[0], visits[1] + 1))
    chances = chances_of(hospital, years, sex)
    findings = _first(chances, course)
    day, rows = 0, [SyntheticVisit(day=0, age=years, findings=tuple(findings))]
    for _ in range(count - 1):
        gap = max(1, round(float(np.exp(course.normal(3.6, 0.9)))))
        day += gap
        findings = _next([f for f in findings if f.change != "resolved"], gap, years, chances, course)
        rows.append(SyntheticVisit(day=day, age=years + day // 365, findings=tuple(findings)))
    return SyntheticPatient(index=index, age=years, sex=sex, visits=tuple(rows))


def draw_anatomy(seed: int, patient: SyntheticPatient) -> Anatomy:
    """Draw the body of a patient, constant over the visits."""
    rng = stream(seed, patient.index, "anatomy")
    old = (patient.age - 55) / 20
    woman = patient.sex == "F"
    fat = float(np.clip(rng.beta(2.2, 3.2), 0, 1))
    base = 0.47 + rng.normal(0, 0.035) - 0.05 * fat
    return Anatomy(
        width=0.735 - 0.03 * woman + rng.normal(0, 0.022),
        apex=-0.80 + rng.normal(0, 0.025),
        base=(base, base + 0.06 + rng.normal(0, 0.015)),
        heart=float(np.clip(0.435 + 0.012 * old + 0.02 * fat + rng.normal(0, 0.016), 0.38, 0.485)),
        heart_tilt=0.62 - 0.25 * fat + rng.normal(0, 0.06),
        mediastinum=0.110 + 0.008 * old + 0.008 * fat + abs(rng.normal(0, 0.006)),
        knob=float(np.clip(0.045 + 0.018 * old + rng.normal(0, 0.008), 0.015, 0.09)),
        rib_spacing=0.165 + rng.normal(0, 0.007),
        rib_phase=rng.random(),
        rib_slope=0.20 + rng.normal(0, 0.035),
        bone=float(np.clip(1.02 - 0.10 * old - 0.06 * woman + rng.normal(0, 0.06), 0.65, 1.25)),
        fat=fat,
        breast=float(np.clip(0.35 + 0.5 * fat + rng.normal(0, 0.15), 0.1, 1)) if woman else 0.0,
        clavicle=-0.56 + rng.normal(0, 0.025),
        hilum=1.0 + 0.05 * old + rng.normal(0, 0.08),
        seed=int(rng.integers(2**31)),
    )


def chances_of(hospital: HospitalProfile, age: float, sex: Sex) -> dict[str, float]:
    """Return condition -> how often it occurs in patients of this hospital, age and sex."""
    chances = {}
    for condition, (prevalence, growth, men, _) in EPIDEMIOLOGY.items():
        usual = float(prevalence * np.exp(growth * (age - 60) / 20) * (men if sex == "M" else 1.0))
        chances[condition] = usual * hospital.prevalence.get(condition, 1.0)
    return chances


def _first(chances: Mapping[str, float], rng: np.random.Generator) -> list[ChestFinding]:
    """Return what a patient has at the first visit."""
    findings: list[ChestFinding] = []
    for condition, chance in chances.items():
        present = {f.condition for f in findings}
        if condition in ("edema", "pleural effusion") and present & {"cardiomegaly", "edema"}:
            chance *= 1.7
        if condition == "support devices" and len(findings) > 1:
            chance *= 1.8
        if rng.random() < min(chance, 0.75):
            _add_finding(findings, _new_finding(condition, rng))
    return findings


def add_new_findings(
    findings: list[ChestFinding], chances: Mapping[str, float], rng: np.random.Generator
) -> None:
    """Add findings that appear between two visits to `findings`, in place.

    Args:
        chances: condition -> probability that it appears where the patient does not have it.
    """
    for condition, chance in chances.items():
        appears = rng.random() < chance
        # Drawn whether it appears or not, so that one condition's fate moves no other one's draws.
        new = replace(_new_finding(condition, rng), change="new")
        if appears and all(f.condition != condition for f in findings):
            _add_finding(findings, new)


def _add_finding(findings: list[ChestFinding], new: ChestFinding) -> None:
    """Add a finding unless the list is full or the place is taken by another patch."""
    count = sum(f.condition != "support devices" for f in findings)
    if new.condition != "support devices" and count >= MAX_FINDINGS:
        return
    if new.condition in _PATCHES:
        beside = [f for f in findings if set(f.sides) & set(new.sides)]
        wet = any(f.condition in ("pleural effusion", "atelectasis") for f in beside)
        if wet and new.zone == "lower":
            new = replace(new, zone="mid")
        if any(f.condition in _PATCHES and f.zone == new.zone for f in beside):
            return
    findings.append(new)


def _new_finding(condition: str, rng: np.random.Generator) -> ChestFinding:
    """Return a new finding with random extent, side and zone."""
    extent, u, v = (float(rng.random()) for _ in range(3))
    spot = (float(rng.uniform(-1, 1)), float(rng.uniform(-1, 1)))
    side = zone = kind = ""
    if condition == "support devices":
        kind = DEVICES[int(u * len(DEVICES))]
    elif condition not in ("enlarged cardiomediastinum", "cardiomegaly", "edema"):
        two = _TWO_SIDED.get(condition, 0.0)
        side = "bilateral" if u < two else "right" if u < two + 0.5 * (1 - two) else "left"
    if condition in (*_PATCHES, "fracture"):
        zone = ("upper", "mid", "lower")[int(v * 3)]
    elif condition == "atelectasis":
        zone = "lower"
    elif condition == "pleural other":
        zone = "upper" if v < 0.4 else "lower"
    return ChestFinding(
        condition=condition, extent=0.04 + 0.96 * extent, side=side, zone=zone, kind=kind, spot=spot
    )


def _next(
    before: list[ChestFinding], gap: int, age: int, chances: Mapping[str, float], rng: np.random.Generator
) -> list[ChestFinding]:
    """Return the findings `gap` days later, each with what changed; resolved ones are kept once, marked."""
    later: list[ChestFinding] = []
    recovery = 0.85 - 0.15 * float(np.clip((age - 60) / 20, -1, 1.5))
    for f in before:
        tau = EPIDEMIOLOGY[f.condition][3]
        fade = recovery * (1 - np.exp(-gap / tau)) if tau else 0.0
        fate, step = rng.random(), rng.normal(0, 0.22)
        if fate < 0.8 * fade:
            later.append(replace(f, change="resolved"))
            continue
        if f.condition == "support devices" or abs(step) < 0.12:
            later.append(replace(f, change="unchanged"))
            continue
        grow = step - 0.15 * fade if tau else abs(step) * (1 if fate > 0.25 else -0.6)
        extent = float(np.clip(f.extent + grow, 0.04, 1.0))
        moved = extent - f.extent
        change = "unchanged" if abs(moved) < 0.08 else "increased" if moved > 0 else "decreased"
        later.append(replace(f, extent=extent if change != "unchanged" else f.extent, change=change))
    add_new_findings(later, {c: min(0.4 * chance, 0.5) for c, chance in chances.items()}, rng)
    return later
