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
from contextlib import suppress
from typing import Any

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.readers.common import SourceRecords, parse_number, parse_sex
from medflare.data.readers.fields import days_of_dates, parse_date, parse_integer, unreadable_fields
from medflare.data.readers.tables import ColumnMap, SourceTable, TableRow, find_file, same_names
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

FILES = ("manifest.jsonl", "manifest.csv", "manifest.jsonl.gz", "manifest.csv.gz")
FIELDS: ColumnMap = {
    **same_names("study_id", "patient_id", "image", "report", "split", "labels"),
    **same_names("age", "sex", "day", "visit", "view"),
    "date": None,
}
REQUIRED = ("image", "report")
IDENTIFIERS = ("study_id", "patient_id")


def read(config: CohortConfig) -> SourceRecords:
    """Read the manifest in `config.root`, or the table `config.file` in it.

    `columns: {patient_id: null}` says that no column names the patient: each study is then its own, and two
    of one person may be in training and test. With `study_id: null` a study is named by its row.
    """
    made = {name for name in IDENTIFIERS if name in config.columns and config.columns[name] is None}
    required = [*REQUIRED, *(name for name in IDENTIFIERS if name not in made)]
    table = SourceTable(find_file(config.root, FILES, config.file), FIELDS, config.columns, required)
    source = SourceRecords(skipped=table.unreadable, has_split=table.has("split"))
    covariates = config.visits.covariates if config.visits is not None else ()
    table.check_covariates(covariates)
    for index, row in enumerate(table.select(config.select)):
        study_id = table.text(row, "study_id") or f"{table.path.name} row {index + 1}"
        patient_id = study_id if "patient_id" in made else table.text(row, "patient_id")
        extra = {name: row.get(name) for name in covariates}
        source.studies.append(_study(table, row, study_id, patient_id, extra))
    if table.has("date"):
        source.studies = days_of_dates(source.studies)
    source.has_labels = any(study.codes is not None for study in source.studies)
    return source


def _study(table: SourceTable, row: TableRow, study_id: str, patient_id: str, extra: dict[str, Any]) -> Study:
    given = {name: table.get(row, name) for name in ("age", "day", "visit", "date")}
    age, day = parse_number(given["age"]), parse_number(given["day"])
    visit, date = parse_integer(given["visit"]), parse_date(given["date"])
    unread = unreadable_fields(given, {"age": age, "day": day, "visit": visit, "date": date})
    return Study(
        study_id=study_id,
        patient_id=patient_id,
        images=tuple(table.path.parent / name for name in _paths(table.get(row, "image"))),
        report=table.text(row, "report"),
        split=table.text(row, "split"),
        codes=parse_codes(table.get(row, "labels")),
        view=table.text(row, "view"),
        age=age,
        sex=parse_sex(table.get(row, "sex")),
        day=day,
        visit=visit,
        place=table.location(row),
        extra=extra | ({"unread": unread} if unread else {}) | ({} if date is None else {"date": date}),
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
    """Return 14 codes from a list, a mapping or a text; None without 14 values of Code."""
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
