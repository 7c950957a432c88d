# SPDX-License-Identifier: Apache-2.0
"""From studies to patients with ordered visits (FedTAR, paper 001).

A visit has a number t = 1..T. Where the source numbers its visits, a missed one leaves a hole; n_{k,t} counts
what a site has of visit t and may be 0 (`visits_per_number`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from medflare.data.records import Patient, Skipped, Study, Visit
from medflare.data.settings.visits import VisitConfig
from medflare.data.visits.counts import VisitCounts
from medflare.data.visits.demographics import complete_demographics
from medflare.data.visits.order import fault, group_by_patient, order_visits


def prepare_visits(
    studies: Sequence[Study], config: VisitConfig, skipped: list[Skipped], counts: VisitCounts
) -> list[Study]:
    """Usable studies in order of patients and their visits, each with age and sex as far as known.

    A fault goes to `skipped`, with a detail that names file and line of the row.
    """
    return complete_demographics(order_visits(studies, config, skipped, counts), config, skipped, counts)


def number_visits(studies: Sequence[Study], config: VisitConfig, counts: VisitCounts) -> list[Study]:
    """Visits numbered by rank, or as the source does; none beyond `most`, no patient below `fewest`."""
    kept: list[Study] = []
    for own in group_by_patient(studies).values():
        if config.order != "visit":
            own = [replace(study, visit=number) for number, study in enumerate(own, 1)]
        used = [study for study in own if config.most is None or (study.visit or 0) <= config.most]
        if len(used) < config.fewest:
            counts.patients_with_too_few += 1
            continue
        counts.visits_beyond += len(own) - len(used)
        kept += used
    return kept


def patients_without_visits(read: Sequence[Study], usable: Sequence[Study]) -> list[Skipped]:
    """The patients of `read` who have no usable visit, each by the first of their rows."""
    there = {study.patient_id for study in usable}
    lost = [(who, own) for who, own in group_by_patient(read).items() if who and who not in there]
    return [
        fault(own[0], "patient without visits", f"none of {len(own)} row(s) can be used") for _, own in lost
    ]


def group_patients(studies: Sequence[Study]) -> list[Patient]:
    """Patients in order of their first study, with their visits in order of number.

    ValueError where a study has no visit number: its cohort was not read with `visits`.
    """
    return [_patient(who, own) for who, own in group_by_patient(studies).items()]


def _patient(who: str, own: Sequence[Study]) -> Patient:
    if any(study.visit is None for study in own):
        raise ValueError(f"patient '{who}' has studies without a visit number; set 'visits' in site.yaml")
    visits: list[Visit] = []
    ordered = sorted(own, key=lambda study: study.visit or 0)
    for study in ordered:
        before = visits[-1].study if visits else None
        visits.append(
            Visit(
                study=study,
                number=study.visit or 0,
                gap=None if before is None else _between(before, study),
                since=_between(ordered[0], study),
                prior="" if before is None else before.report,
            )
        )
    ages = [study.age for study in ordered if study.age is not None]
    return Patient(
        patient_id=who,
        split=own[0].split,
        age=ages[0] if ages else None,
        sex=own[0].sex,
        visits=tuple(visits),
    )


def _between(first: Study, later: Study) -> float | None:
    return None if first.day is None or later.day is None else later.day - first.day


def visits_per_number(patients: Sequence[Patient], split: str | None = None) -> list[int]:
    """n_{k,t} for t = 1..T, T being the largest number any patient has; of one split, or of all."""
    everything = [visit.number for patient in patients for visit in patient.visits]
    numbers = Counter(v.number for p in patients if split in (None, p.split) for v in p.visits)
    return [numbers[number] for number in range(1, max(everything, default=0) + 1)]
