# SPDX-License-Identifier: Apache-2.0
"""Facts about patients and their visits, for `medflare cohort inspect`: counts, never a patient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from medflare.data.counts import VisitCounts
from medflare.data.records import SPLITS, Patient, Study
from medflare.data.visits.longitudinal import group_patients, visits_per_number


def visit_facts(studies: Sequence[Study], counts: VisitCounts) -> dict[str, Any]:
    """Return JSON-ready facts; empty where the studies were not read as visits.

    patients_with: number of visits -> patients; per_visit: split -> n_{k,t} for t = 1..T; gaps: days between
    visits; missed: visits that patients have not, below the last number they have.
    """
    if not studies or any(study.visit is None for study in studies):
        return {}
    patients = group_patients(studies)
    lengths = Counter(len(patient.visits) for patient in patients)
    return {
        "T": max(visit.number for patient in patients for visit in patient.visits),
        "patients_with": {str(count): lengths[count] for count in sorted(lengths)},
        "per_visit": {split: visits_per_number(patients, split) for split in SPLITS},
        "missed": sum(patient.visits[-1].number - len(patient.visits) for patient in patients),
        "gaps": gap_facts(patients),
        "age": age_facts(patients),
        "sex": dict(Counter(patient.sex or "unknown" for patient in patients).most_common()),
        "images_per_visit": round(sum(len(study.images) for study in studies) / len(studies), 2),
        "changed": counts.to_json(),
    }


def gap_facts(patients: Sequence[Patient]) -> dict[str, float]:
    """Return how many gaps in days between two visits there are and are unknown, and their range."""
    return _range([visit.gap for patient in patients for visit in patient.visits[1:]])


def age_facts(patients: Sequence[Patient]) -> dict[str, float]:
    """Return how many ages in years at the first visit there are and are unknown, and their range."""
    return _range([patient.age for patient in patients])


def _range(values: Sequence[float | None]) -> dict[str, float]:
    """Return count and unknown, and of the known values minimum, median and maximum."""
    known = [value for value in values if value is not None]
    facts: dict[str, float] = {"count": len(values), "unknown": len(values) - len(known)}
    if known:
        facts |= {"min": round(min(known), 1), "median": round(median(known), 1), "max": round(max(known), 1)}
    return facts
