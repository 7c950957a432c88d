# SPDX-License-Identifier: Apache-2.0
"""A patient's visits in order: what cannot be placed in time is left out and named."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from medflare.core.conditions import Code
from medflare.data.counts import VisitCounts
from medflare.data.records import Skipped, Study
from medflare.data.settings.visits import VisitConfig

MAX_DAYS = 120 * 366.0
"""Days; a day beyond is a date that was taken for a number, as 20240531."""
_RANK = {Code.BLANK: 0, Code.NEGATIVE: 1, Code.UNCERTAIN: 2, Code.POSITIVE: 3}


def group_by_patient(studies: Iterable[Study]) -> dict[str, list[Study]]:
    """Return patient -> studies, both in the order given."""
    studies_of: dict[str, list[Study]] = defaultdict(list)
    for study in studies:
        studies_of[study.patient_id].append(study)
    return dict(studies_of)


def fault(study: Study, reason: str, detail: str) -> Skipped:
    """Return a fault of one row; its detail begins with the file and line."""
    where = study.place or f"study '{study.study_id}'"
    return Skipped(
        record=study.study_id, reason=reason, detail=f"{where}: patient '{study.patient_id}': {detail}"
    )


def order_visits(
    studies: Sequence[Study], config: VisitConfig, skipped: list[Skipped], counts: VisitCounts
) -> list[Study]:
    """Return the studies of each patient in the order of `config.order`.

    Of rows that contradict each other the first one is kept.

    Args:
        skipped: faults are added to it, each with file and line of its row.
        counts: what was changed without a fault is counted here.
    """
    # The steps depend on each other. Only rows that have a place can be sorted; only sorted rows show which
    # of two rows of a day is the later one; and only after merging does a remaining contradiction between
    # days and visit numbers mean that one of the two is wrong.
    kept: list[Study] = []
    for rows in group_by_patient(_with_possible_day(study) for study in studies).values():
        placed = _placed_by_day(rows, skipped) if config.order == "day" else _placed(rows, config, skipped)
        if config.order == "day":
            days = [study.day or 0.0 for study in placed]
            counts.patients_sorted += days != sorted(days)
            placed = sorted(placed, key=lambda study: study.day or 0.0)  # rows of one day stay as in the file
        elif config.order == "visit":
            placed = sorted(placed, key=lambda study: study.visit or 0)
        placed = _one_a_day(placed, config, skipped, counts)
        kept += _consistent(placed, config, skipped)
    return kept


def _with_possible_day(study: Study) -> Study:
    """Return the study without a day that no life is long enough for; it is noted as unreadable instead."""
    if study.day is None or abs(study.day) <= MAX_DAYS:
        return study
    unread = {**study.extra.get("unread", {}), "day": f"{study.day:.0f}"}
    return replace(study, day=None, extra={**study.extra, "unread": unread})


def _placed_by_day(rows: Sequence[Study], skipped: list[Skipped]) -> list[Study]:
    """Return the rows whose day is known; the first row of a patient without any day is their only visit."""
    placed: list[Study] = []
    undated = all(study.day is None for study in rows)
    for study in rows:
        if (text := _unread_day(study)) is not None:
            detail = f"the day or date {text!r} cannot be read; expected days as 12, or a column of dates as "
            detail += "2024-05-31 or 31.05.2024 that 'columns: {date: ...}' names"
            skipped.append(fault(study, "unreadable date", detail))
        elif study.day is None and (not undated or placed):
            which = "the first row is kept as the only visit" if undated else "other rows have one"
            skipped.append(fault(study, "no date", f"no day or date, so the visit has no place; {which}"))
        else:
            placed.append(study)
    return placed


def _placed(rows: Sequence[Study], config: VisitConfig, skipped: list[Skipped]) -> list[Study]:
    """Return the rows that have a visit number, if numbers order them; an unreadable day is reported."""
    placed = []
    for study in rows:
        if config.order == "visit" and (study.visit is None or study.visit < 1):
            written = study.extra.get("unread", {}).get("visit", study.visit)
            detail = f"the visit number is {written!r}; expected 1, 2, 3 and so on"
            skipped.append(fault(study, "no visit number", detail))
            continue
        if (text := _unread_day(study)) is not None:
            detail = f"the day or date {text!r} cannot be read; the visit stays, its gap is unknown"
            skipped.append(fault(study, "unreadable date", detail))
        placed.append(study)
    return placed


def _unread_day(study: Study) -> str | None:
    unread = study.extra.get("unread", {})
    return next((unread[name] for name in ("date", "day") if name in unread and study.day is None), None)


def _one_a_day(
    ordered: Sequence[Study], config: VisitConfig, skipped: list[Skipped], counts: VisitCounts
) -> list[Study]:
    """Return one row a day and one a visit number; `config.same_day` says what becomes of the others."""
    # A row may repeat the day of one visit and the number of another. The day decides, because numbers are
    # typed by hand. "keep" keeps two visits of one day, but never two of one number: visits are looked up by
    # number.
    kept: list[Study] = []
    for study in ordered:
        twin = next((i for i, other in enumerate(kept) if _same_day(other, study)), None)
        double = next((i for i, other in enumerate(kept) if _same_number(other, study, config)), None)
        match = twin if twin is not None else double
        if match is None or (config.same_day == "keep" and double is None):
            kept.append(study)
        elif config.same_day == "merge":
            kept[match] = merge_studies(kept[match], study)
            counts.rows_merged += 1
        elif twin is not None:
            detail = f"day {study.day:g} has a visit already ({_where(kept[twin])}), which is kept; "
            detail += "'visits: {same_day: merge}' makes one of them, 'keep' two"
            skipped.append(fault(study, "two visits on one day", detail))
        else:
            detail = f"visit {study.visit} is there already ({_where(kept[match])}), which is kept"
            skipped.append(fault(study, "two visits of one number", detail))
    return kept


def _same_day(one: Study, other: Study) -> bool:
    return one.day is not None and other.day is not None and math.floor(one.day) == math.floor(other.day)


def _same_number(one: Study, other: Study, config: VisitConfig) -> bool:
    return config.order == "visit" and one.visit == other.visit


def merge_studies(one: Study, other: Study) -> Study:
    """Return one visit of two rows: images and distinct texts of both, and of two codes the graver one."""
    texts = dict.fromkeys((one.report, other.report))
    codes = one.codes
    if one.codes is not None and other.codes is not None:
        pairs = zip(one.codes, other.codes, strict=True)
        codes = tuple(max(pair, key=lambda code: _RANK[Code(code)]) for pair in pairs)
    return replace(
        one,
        images=tuple(dict.fromkeys((*one.images, *other.images))),
        report=" ".join(texts),
        codes=codes,
        age=one.age if one.age is not None else other.age,
        sex=one.sex or other.sex,
    )


def _consistent(ordered: Sequence[Study], config: VisitConfig, skipped: list[Skipped]) -> list[Study]:
    """Return the rows without those whose day contradicts the order by number or by place in the file."""
    # Every kept row is compared, not only the last one: rows without a day lie between and contradict
    # nothing.
    kept: list[Study] = []
    for study in ordered:
        before = next((other for other in reversed(kept) if _contradict(other, study, config)), None)
        if before is None:
            kept.append(study)
            continue
        detail = f"{_describe(study)} is out of order with {_describe(before)} ({_where(before)})"
        if config.order == "day":
            detail += "; 'columns: {visit: null}' goes by the days alone"
        skipped.append(fault(study, "dates out of order", detail))
    return kept


def _contradict(before: Study, after: Study, config: VisitConfig) -> bool:
    if config.order == "day":
        return before.visit is not None and after.visit is not None and after.visit < before.visit
    return before.day is not None and after.day is not None and after.day < before.day


def _describe(study: Study) -> str:
    number = f"visit {study.visit}" if study.visit is not None else "the visit"
    return number + (f" on day {study.day:g}" if study.day is not None else "")


def _where(study: Study) -> str:
    return study.place or f"study '{study.study_id}'"
