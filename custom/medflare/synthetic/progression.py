# SPDX-License-Identifier: Apache-2.0
"""Progression of synthetic patients' findings between visits, depending on age, sex, visit and hospital.

Between two visits a finding gets worse, gets better, resolves or stays, by competing hazards per 30 days. The
frailty u = age * (years - 60) / 20 ± men + drift * (t - 2), plus for men and minus for women, has worsening
and new findings go with e^u, improving and resolving with e^-u. Who the patient is and how many visits passed
tell u, hence adapters for patients and steps for visits. A picture tells more of what became of its findings
than these do (docs/results/longitudinal.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from medflare.synthetic.findings import ChestFinding
from medflare.synthetic.patients import (
    EPIDEMIOLOGY,
    Sex,
    SyntheticPatient,
    SyntheticVisit,
    add_new_findings,
    chances_of,
    draw_patient,
    stream,
)
from medflare.synthetic.profiles import HospitalProfile

MONTH = 30.0
RARE = 500  # people looked at for each patient wanted, at most
STEP = (0.3, 0.6)  # share of what is left up to 1, or down to 0, by which a finding gets worse or better
SMALLEST = 0.06  # extent below which an acute finding is gone
NOTICED = 0.02  # change of extent that is noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """One hospital's follow-up.

    Attributes:
        worse, better, resolved: hazards of a finding per 30 days at u = 0; chronic findings do not resolve.
        new: factor on the prevalence of a finding that appears within a month at u = 0.
        age: change of u per 20 years; men: what u gains in men and loses in women.
        drift: change of u from one visit number to the next.
        gap: median days between visits and the standard deviation of their logarithm; 0 is a fixed schedule.
        attends: probability that a patient comes to a planned visit after the first.
        stops: planned visits at the end that this hospital does not have.
    """

    worse: float = 0.8
    better: float = 0.8
    resolved: float = 0.25
    new: float = 0.35
    age: float = 1.2
    men: float = 0.6
    drift: float = -0.4
    gap: tuple[float, float] = (30.0, 0.6)
    attends: float = 0.9
    stops: int = 0

    def frailty(self, age: float, sex: Sex, number: int) -> float:
        """Return the frailty u at visit `number` (2..T)."""
        man = self.men if sex == "M" else -self.men
        return self.age * (age - 60) / 20 + man + self.drift * (number - 2)


PROGRESSIONS: Mapping[str, Progression] = {
    "site-1": Progression(gap=(28.0, 0.7)),
    "site-2": Progression(age=1.4, men=0.8, drift=-0.3, gap=(42.0, 0.0), attends=1.0),
    "site-3": Progression(age=1.0, men=0.5, drift=-0.6, gap=(60.0, 0.5), attends=0.8, stops=1),
    "hospital-4": Progression(),
}
"""Demo hospital -> its follow-up; a fixed schedule, gaps of all sizes, missed visits, one visit fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A patient whose i-th visit is the planned visit `numbers[i]`; the first is number 1."""

    patient: SyntheticPatient
    numbers: tuple[int, ...]


def follow(
    profile: HospitalProfile, progression: Progression, patients: int, visits: int
) -> Iterator[Course]:
    """Yield courses of the first `patients` patients whose first visit has a finding other than a device.

    The first visit is the one of the single-visit hospital, picture and findings.

    Raises:
        ValueError: hardly anyone has a finding.
    """
    index = enrolled = 0
    while enrolled < patients:
        if index > RARE * patients:
            raise ValueError(
                f"{profile.name}: {enrolled} of {index} patients have a finding; raise prevalence"
            )
        patient = draw_patient(profile, index)
        if any(f.condition != "support devices" for f in patient.visits[0].findings):
            enrolled += 1
            yield _course(profile, progression, patient, visits)
        index += 1


def _course(
    profile: HospitalProfile, progression: Progression, patient: SyntheticPatient, visits: int
) -> Course:
    rng = stream(profile.seed, patient.index, "progress")
    rows, numbers = list(patient.visits), [1]
    usual = chances_of(profile, patient.age, patient.sex)
    for number, day in _schedule(profile.seed, progression, patient.index, visits):
        u = progression.frailty(patient.age, patient.sex, number)
        before = [f for f in rows[-1].findings if f.change != "resolved"]
        gap = day - rows[-1].day
        findings = _change(before, progression, u, gap, rng)
        factor = progression.new * np.exp(u) * (1 - np.exp(-gap / MONTH))
        add_new_findings(findings, {c: float(min(0.5, factor * p)) for c, p in usual.items()}, rng)
        rows.append(SyntheticVisit(day=day, age=patient.age + day // 365, findings=tuple(findings)))
        numbers.append(number)
    return Course(patient=replace(patient, visits=tuple(rows)), numbers=tuple(numbers))


def _schedule(seed: int, progression: Progression, index: int, visits: int) -> Iterator[tuple[int, int]]:
    """Yield (number, day) of the visits after the first to which the patient comes."""
    rng = stream(seed, index, "schedule")
    median, spread = progression.gap
    day = 0
    for number in range(2, visits - progression.stops + 1):
        day += max(1, round(float(median * np.exp(rng.normal(0, 1) * spread))))
        if rng.random() < progression.attends:
            yield number, day


def _change(
    before: list[ChestFinding], progression: Progression, u: float, gap: int, rng: np.random.Generator
) -> list[ChestFinding]:
    """Return every finding `gap` days later, with what changed."""
    later = []
    for f in before:
        chronic = not EPIDEMIOLOGY[f.condition][3]
        hazards = np.array(
            [
                progression.worse * np.exp(u),
                progression.better * np.exp(-u),
                0.0 if chronic else progression.resolved * np.exp(-u),
            ]
        )
        if f.condition == "support devices":
            hazards[:2] = 0.0
        happens, which = rng.random(2)
        step = float(rng.uniform(*STEP))
        stays = happens >= 1 - np.exp(-hazards.sum() * gap / MONTH)
        fate = 3 if stays else int(np.searchsorted(np.cumsum(hazards) / hazards.sum(), which, side="right"))
        later.append(_changed(f, fate, step))
    return later


def _changed(f: ChestFinding, fate: int, step: float) -> ChestFinding:
    """Return the finding after it got worse (0), got better (1), resolved (2) or stayed (3)."""
    chronic = not EPIDEMIOLOGY[f.condition][3]
    if fate == 2:
        return replace(f, change="resolved")
    extent = f.extent + (step * (1 - f.extent) if fate == 0 else -step * f.extent if fate == 1 else 0.0)
    if extent < SMALLEST and fate == 1:
        if not chronic:
            return replace(f, change="resolved")
        extent = min(f.extent, SMALLEST)
    if abs(extent - f.extent) < NOTICED:
        return replace(f, change="unchanged")
    return replace(f, extent=extent, change="increased" if fate == 0 else "decreased")
