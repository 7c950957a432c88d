# SPDX-License-Identifier: Apache-2.0
"""Single values of a table: whole numbers, dates, and what could not be read of them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from medflare.data.readers.common import parse_number
from medflare.data.readers.tables import TableRow
from medflare.data.records import Study

_DAY_MONTH_YEAR = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})((?:[ T].+)?)", re.ASCII)


def parse_integer(value: Any) -> int | None:
    """Return `value` as a whole number, None where it is none."""
    number = parse_number(value)
    return int(number) if number is not None and number.is_integer() else None


def unreadable_fields(given: TableRow, values: TableRow) -> dict[str, str]:
    """Return field -> its text, of the fields that are not empty and from which no value could be read."""
    texts = {name: str("" if text is None or text != text else text).strip() for name, text in given.items()}
    return {name: text for name, text in texts.items() if text and values[name] is None}


def parse_date(value: Any) -> datetime.datetime | None:
    """Return a date, or date and time, of ISO 8601, of MIMIC's form 21800510[.0], or as 31.5.2024; else None.

    Dates with slashes are not read, since 5/6/2024 is of May or of June. A time zone is dropped: days are
    counted at one hospital.
    """
    text = str(value if value is not None else "").strip().removesuffix(".0")
    if dotted := _DAY_MONTH_YEAR.fullmatch(text):
        day, month, year, rest = dotted.groups()
        text = f"{year}-{month:0>2}-{day:0>2}{rest}"
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(text).replace(tzinfo=None)
    return None


def days_of_dates(studies: Sequence[Study]) -> list[Study]:
    """Return every study with its day from `extra["date"]`, None where that is not known.

    Days count from midnight before the patient's first date; the time of day, where known, is a fraction.
    """
    first: dict[str, datetime.datetime] = {}
    for study in studies:
        date = study.extra.get("date")
        if date is not None:
            first[study.patient_id] = min(date, first.get(study.patient_id, date))
    dated = []
    for study in studies:
        extra = {key: value for key, value in study.extra.items() if key != "date"}
        date, day = study.extra.get("date"), None
        if date is not None:
            start = datetime.datetime.combine(first[study.patient_id].date(), datetime.time())
            day = (date - start) / datetime.timedelta(days=1)
        dated.append(replace(study, day=day, extra=extra))
    return dated
