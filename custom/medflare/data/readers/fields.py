# SPDX-License-Identifier: Apache-2.0
"""Single values of a table: whole numbers, dates, and what could not be read of them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from medflare.data.readers.common import Row, parse_number
from medflare.data.records import Study


def parse_integer(value: Any) -> int | None:
    """`value` as a whole number, None where it is none."""
    found = parse_number(value)
    return int(found) if found is not None and found.is_integer() else None


def unreadable_fields(given: Row, values: Row) -> dict[str, str]:
    """Field -> what stands there, of the fields that hold something from which no value could be read."""
    told = {name: str("" if text is None or text != text else text).strip() for name, text in given.items()}
    return {name: text for name, text in told.items() if text and values[name] is None}


def parse_date(value: Any) -> datetime.datetime | None:
    """A date, or date and time, as ISO 8601 or MIMIC's 21800510[.0] writes it; None where it is neither.

    A time zone is dropped: days are counted at one hospital.
    """
    text = str(value if value is not None else "").strip().removesuffix(".0")
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(text).replace(tzinfo=None)
    return None


def days_of_dates(studies: Sequence[Study]) -> list[Study]:
    """Every study with its day from `extra["date"]`, None where that is not known.

    Days count from midnight before the patient's first date; the time of day, where known, is a fraction.
    """
    first: dict[str, datetime.datetime] = {}
    for study in studies:
        seen = study.extra.get("date")
        if seen is not None:
            first[study.patient_id] = min(seen, first.get(study.patient_id, seen))
    found = []
    for study in studies:
        extra = {key: value for key, value in study.extra.items() if key != "date"}
        seen, day = study.extra.get("date"), None
        if seen is not None:
            start = datetime.datetime.combine(first[study.patient_id].date(), datetime.time())
            day = (seen - start) / datetime.timedelta(days=1)
        found.append(replace(study, day=day, extra=extra))
    return found
