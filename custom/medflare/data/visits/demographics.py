# SPDX-License-Identifier: Apache-2.0
"""Age and sex over a patient's visits: impossible and contradictory ones are named, missing ones filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from medflare.data.counts import VisitCounts
from medflare.data.records import Skipped, Study
from medflare.data.settings.visits import VisitConfig
from medflare.data.visits.order import fault, group_by_patient

MAX_AGE = 120.0
"""Years; no one was ever older than 122."""
TOLERANCE = 2.0
"""Years by which ages may differ from what passed between visits: whole years, and MIMIC's anchor years."""
YEAR = 365.25


def complete_demographics(
    studies: Sequence[Study], config: VisitConfig, skipped: list[Skipped], counts: VisitCounts
) -> list[Study]:
    """Return the studies with the age at each visit and one sex for each patient, as far as known.

    Faults are `impossible age`, `contradictory age` and `contradictory sex`, which cost the entry and not the
    visit, and `no age` and `no sex`, which cost the patient where `config.needs` says so.
    """
    kept: list[Study] = []
    for rows in group_by_patient(studies).values():
        aged = _ages(rows, skipped, counts)
        sexed = _sexes(aged, skipped, counts)
        kept += _needed(sexed, config, skipped)
    return kept


def _ages(rows: Sequence[Study], skipped: list[Skipped], counts: VisitCounts) -> list[Study]:
    possible = [_possible(study, skipped) for study in rows]
    known = [study for study in possible if study.age is not None]
    if not known:
        return possible
    # The visit that most others agree with, given the days between them, is taken as right. A mean would be
    # wrong at every visit as soon as one age is mistyped.
    reference = max(known, key=lambda study: sum(_agree(study, other) for other in known))
    aged = []
    for study in possible:
        if study.age is not None and _agree(reference, study):
            aged.append(study)
            continue
        if study.age is None:
            counts.ages_filled += 1
        else:
            where = reference.place or "another visit"
            detail = f"age {study.age:g} does not fit age {reference.age:g} at {where}; it is corrected"
            skipped.append(fault(study, "contradictory age", detail))
        aged.append(replace(study, age=_expected(reference, study)))
    return aged


def _possible(study: Study, skipped: list[Skipped]) -> Study:
    """Return the study without an age that cannot be one."""
    unread = study.extra.get("unread", {}).get("age")
    if unread is None and (study.age is None or 0 <= study.age <= MAX_AGE):
        return study
    text = repr(unread) if unread is not None else f"{study.age:g}"
    detail = f"age {text} is no age; expected 0 to {MAX_AGE:g} years. The visit stays without it"
    skipped.append(fault(study, "impossible age", detail))
    return replace(study, age=None)


def _expected(reference: Study, study: Study) -> float:
    """Return the years at `study`, from those at `reference` and the days between."""
    assert reference.age is not None
    if reference.day is None or study.day is None:
        return reference.age
    return max(0.0, reference.age + (study.day - reference.day) / YEAR)


def _agree(reference: Study, study: Study) -> bool:
    return study.age is not None and abs(study.age - _expected(reference, study)) <= TOLERANCE


def _sexes(rows: Sequence[Study], skipped: list[Skipped], counts: VisitCounts) -> list[Study]:
    """Return the rows with the sex that most visits state; with as many of both it is unknown."""
    stated = Counter(study.sex for study in rows if study.sex is not None)
    if not stated:
        return list(rows)
    ranked = stated.most_common()
    tie = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
    sex = None if tie else ranked[0][0]
    for study in rows:
        if study.sex is not None and study.sex != sex:
            others = ", ".join(f"{name} {count} times" for name, count in ranked)
            detail = f"sex is {study.sex!r}; the visits say {others}. It is taken as {sex or 'unknown'}"
            skipped.append(fault(study, "contradictory sex", detail))
    counts.sexes_filled += sum(study.sex is None for study in rows) if sex else 0
    return [replace(study, sex=sex) for study in rows]


def _needed(rows: Sequence[Study], config: VisitConfig, skipped: list[Skipped]) -> list[Study]:
    missing = [name for name in config.needs if getattr(rows[0], name) is None]
    for name in missing[:1]:
        detail = f"no visit tells the {name}, and 'visits: needs' asks for it"
        skipped.extend(fault(study, f"no {name}", detail) for study in rows)
    return [] if missing else list(rows)
