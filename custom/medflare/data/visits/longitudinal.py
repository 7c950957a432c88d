# SPDX-License-Identifier: Apache-2.0
"""From studies to patients with ordered visits (FedTAR).

A visit has a number t = 1..T. Where the source numbers its visits, a missed one leaves a hole; n_{k,t} counts
what a site has of visit t and may be 0 (`visits_per_number`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from medflare.data.counts import VisitCounts
from medflare.data.records import Patient, Skipped, Study, Visit
from medflare.data.settings.visits import VisitConfig
from medflare.data.visits.demographics import complete_demographics
from medflare.data.visits.order import fault, group_by_patient, order_visits


def prepare_visits(
    studies: Sequence[Study], config: VisitConfig, skipped: list[Skipped], counts: VisitCounts
) -> list[Study]:
    """Return usable studies in order of patients and their visits, with age and sex as far as known.

    A fault goes to `skipped`, with a detail that names file and line of the row.
    """
    return complete_demographics(order_visits(studies, config, skipped, counts), config, skipped, counts)


def number_visits(studies: Sequence[Study], config: VisitConfig, counts: VisitCounts) -> list[Study]:
    """Number visits by rank, or as the source does; drop those beyond `most`, and patients below `fewest`."""
    # This runs again after studies were left out for their labels. By rank, later visits then move up;
    # numbers of the source keep their holes, because there visit t is the t-th planned one, attended or not.
    kept: list[Study] = []
    for rows in group_by_patient(studies).values():
        if config.order != "visit":
            rows = [replace(study, visit=number) for number, study in enumerate(rows, 1)]
        used = [study for study in rows if config.most is None or (study.visit or 0) <= config.most]
        if len(used) < config.fewest:
            counts.patients_with_too_few += 1
            continue
        counts.visits_beyond += len(rows) - len(used)
        kept += used
    return kept


def patients_without_visits(read: Sequence[Study], usable: Sequence[Study]) -> list[Skipped]:
    """Return a fault for each patient of `read` who has no usable visit, named by the first of their rows."""
    present = {study.patient_id for study in usable}
    lost = [(who, rows) for who, rows in group_by_patient(read).items() if who and who not in present]
    return [
        fault(rows[0], "patient without visits", f"none of {len(rows)} row(s) can be used")
        for _, rows in lost
    ]


def group_patients(studies: Sequence[Study]) -> list[Patient]:
    """Return patients in order of their first study, with their visits in order of number.

    Raises:
        ValueError: a study has no visit number, because its cohort was not read with `visits`.
    """
    return [_patient(who, rows) for who, rows in group_by_patient(studies).items()]


def _patient(who: str, rows: Sequence[Study]) -> Patient:
    if any(study.visit is None for study in rows):
        raise ValueError(f"patient '{who}' has studies without a visit number; set 'visits' in site.yaml")
    visits: list[Visit] = []
    ordered = sorted(rows, key=lambda study: study.visit or 0)
    for study in ordered:
        before = visits[-1].study if visits else None
        visits.append(
            Visit(
                study=study,
                number=study.visit or 0,
                gap=None if before is None else _between(before, study),
                since=_between(ordered[0], study),
                prior=None if before is None else before.report,
            )
        )
    ages = [study.age for study in ordered if study.age is not None]
    return Patient(
        patient_id=who,
        split=rows[0].split,
        age=ages[0] if ages else None,
        sex=rows[0].sex,
        visits=tuple(visits),
    )


def _between(first: Study, later: Study) -> float | None:
    return None if first.day is None or later.day is None else later.day - first.day


def visits_per_number(patients: Sequence[Patient], split: str | None = None) -> list[int]:
    """Return n_{k,t} for t = 1..T, of one split or of all; T is the largest visit number of any patient."""
    # T is taken over all splits, so that the lists of a site's splits have the same length.
    everything = [visit.number for patient in patients for visit in patient.visits]
    numbers = Counter(v.number for p in patients if split in (None, p.split) for v in p.visits)
    return [numbers[number] for number in range(1, max(everything, default=0) + 1)]
