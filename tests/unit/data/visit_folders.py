# SPDX-License-Identifier: Apache-2.0
"""A small folder whose patients come several times, some of its rows changed, and what is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cohort_folders as folders

from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import Patient
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.data.settings.visits import VisitConfig
from medflare.data.visits.longitudinal import group_patients

Rows = list[dict[str, Any]]
Changes = Mapping[int, Mapping[str, Any]]
"""Number of a row, from 0 -> its entries that are others."""
VISITS = (("A", 0, 60, "M"), ("A", 30, 60, "M"), ("A", 90, 60, "M"), ("B", 0, 40, "F"), ("B", 365, 41, "F"))
NUMBERS = (1, 2, 3, 1, 2, 1)
"""The visit number of each row, where the source numbers visits."""


def visit_rows(changes: Changes | None = None, numbers: tuple[int, ...] = ()) -> Rows:
    """Patient A with three visits (days 0, 30, 90), B with two (0, 365), C with one; lines 1 to 6."""
    rows: Rows = [
        {
            "study_id": f"s{index}",
            "patient_id": patient,
            "image": [f"images/s{index}.png"],
            "report": folders.REPORTS[index],
            "split": "test" if patient == "C" else "train",
            "age": age,
            "sex": sex,
            "day": day,
            **({"visit": numbers[index]} if numbers else {}),
        }
        for index, (patient, day, age, sex) in enumerate((*VISITS, ("C", 0, 70, "F")))
    ]
    for index, entries in (changes or {}).items():
        rows[index] |= entries
    return rows


def site(root: Path, rows: Rows | None = None, *, max_skipped: float = 1.0, **visits: Any) -> SiteConfig:
    """Write the rows, and return the settings that read them; `visits` has settings of visits."""
    folders.manifest(root, visit_rows() if rows is None else rows)
    config = CohortConfig(format="manifest", root=root, max_skipped=max_skipped, visits=VisitConfig(**visits))
    return SiteConfig(name="site-1", cohort=config)


def read(root: Path, rows: Rows | None = None, **settings: Any) -> tuple[Cohort, dict[str, Patient]]:
    """Write the rows and read them: (the cohort, its patients by id)."""
    cohort = load_cohort(site(root, rows, **settings))
    return cohort, {patient.patient_id: patient for patient in group_patients(cohort.studies)}


def study_ids(patient: Patient) -> list[str]:
    return [visit.study.study_id for visit in patient.visits]
