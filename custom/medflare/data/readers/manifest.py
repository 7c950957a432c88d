# SPDX-License-Identifier: Apache-2.0
"""Our own manifest: one JSONL or CSV row per study.

Columns: study_id, patient_id, image (path or list of paths, relative to the manifest's folder; in CSV several
paths are separated by ";"), report; optional split, labels, age, sex, day, visit, view. A table that tells
dates instead of days names their column as `date`, and the days are counted from them. `labels` is 14 values
of conditions.Code in the order of CONDITIONS, as a list or separated by spaces, or a mapping condition ->
code. Any table with one row per study can be read by naming its own columns in `columns`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import DataError
from medflare.data.readers.common import (
    Columns,
    Row,
    SourceRecords,
    find_file,
    parse_number,
    parse_sex,
    read_table,
    row_location,
    select_rows,
)
from medflare.data.readers.fields import days_of_dates, parse_date, parse_integer, unreadable_fields
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

FILES = ("manifest.jsonl", "manifest.csv", "manifest.jsonl.gz", "manifest.csv.gz")
DEFAULTS: dict[str, str | list[str] | None] = {
    name: name
    for name in (
        "study_id",
        "patient_id",
        "image",
        "report",
        "split",
        "labels",
        "age",
        "sex",
        "day",
        "visit",
        "view",
    )
} | {"date": None}
REQUIRED = ("study_id", "patient_id", "image", "report")


def read(config: CohortConfig) -> SourceRecords:
    """Reads the manifest in `config.root`, or the table `config.file` in it."""
    path = find_file(config.root, FILES, config.file)
    found, rows, bad = read_table(path)
    columns = Columns(path, found, DEFAULTS, config.columns, REQUIRED)
    source = SourceRecords(skipped=bad, has_split=columns.has("split"))
    further = _further(path, found, config)
    for index, row in enumerate(select_rows(path, found, rows, config.select)):
        study_id = columns.text(row, "study_id") or f"{path.name} row {index + 1}"
        extra = {name: row.get(name) for name in further}
        source.studies.append(_study(path, columns, row, study_id, extra))
    if columns.has("date"):
        source.studies = days_of_dates(source.studies)
    source.has_labels = any(study.codes is not None for study in source.studies)
    return source


def _further(path: Path, found: Sequence[str], config: CohortConfig) -> tuple[str, ...]:
    """The covariates' columns; DataError names those that the table lacks."""
    wanted = config.visits.covariates if config.visits is not None else ()
    if lacking := [name for name in wanted if name not in found]:
        raise DataError(
            f"{path}: 'visits.covariates' names {', '.join(lacking)}. Columns found: {', '.join(found)}."
        )
    return wanted


def _study(path: Path, columns: Columns, row: Row, study_id: str, extra: dict[str, Any]) -> Study:
    given = {name: columns.get(row, name) for name in ("age", "day", "visit", "date")}
    age, day, visit, seen = (
        parse_number(given["age"]),
        parse_number(given["day"]),
        parse_integer(given["visit"]),
        parse_date(given["date"]),
    )
    lost = unreadable_fields(given, {"age": age, "day": day, "visit": visit, "date": seen})
    return Study(
        study_id=study_id,
        patient_id=columns.text(row, "patient_id"),
        images=tuple(path.parent / name for name in _paths(columns.get(row, "image"))),
        report=columns.text(row, "report"),
        split=columns.text(row, "split"),
        codes=parse_codes(columns.get(row, "labels")),
        view=columns.text(row, "view"),
        age=age,
        sex=parse_sex(columns.get(row, "sex")),
        day=day,
        visit=visit,
        place=row_location(path, row),
        extra=extra | ({"unread": lost} if lost else {}) | ({} if seen is None else {"date": seen}),
    )


def _paths(value: Any) -> list[str]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    if isinstance(value, str):
        value = value.split(";")
    if not isinstance(value, list):
        return []
    return [str(item).strip() for item in value if str(item).strip()]


def parse_codes(value: Any) -> tuple[int, ...] | None:
    """14 codes from a list, a mapping or a text; None where they are absent or not 14 values of Code."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text) if text[:1] in "[{" and text else text.replace(",", " ").split()
        except json.JSONDecodeError:
            return None
    if isinstance(value, dict) and value:
        lowered = {str(key).lower(): item for key, item in value.items()}
        if not set(lowered) <= set(CONDITIONS):
            return None
        value = [lowered.get(condition, int(Code.BLANK)) for condition in CONDITIONS]
    try:
        codes = tuple(int(Code(int(item))) for item in value or ())
    except (TypeError, ValueError):
        return None
    return codes if len(codes) == len(CONDITIONS) else None
