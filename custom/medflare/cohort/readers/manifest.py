# SPDX-License-Identifier: Apache-2.0
"""Our own manifest: one JSONL or CSV row per study.

Columns: study_id, patient_id, image (path or list of paths, relative to the manifest's folder; in CSV several
paths are separated by ";"), report; optional split, labels, age, sex, day, view. `labels` is 14 values of
records.Code in the order of CONDITIONS, as a list or separated by spaces, or a mapping condition -> code.
Any table with one row per study can be read by naming its own columns in `columns`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medflare.cohort.readers.common import Columns, Row, Source, find_file, number, read_table, selected, sex
from medflare.cohort.records import CONDITIONS, Code, Study

if TYPE_CHECKING:
    from medflare.cohort.settings import CohortConfig

SETTINGS = frozenset({"file", "columns", "select"})
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
        "view",
    )
}
REQUIRED = ("study_id", "patient_id", "image", "report")


def read(config: CohortConfig) -> Source:
    """Reads the manifest in `config.root`, or the table `config.file` in it."""
    path = find_file(config.root, FILES, config.file)
    found, rows, bad = read_table(path)
    columns = Columns(path, found, DEFAULTS, config.columns, REQUIRED)
    source = Source(skipped=bad, has_split=columns.has("split"))
    for index, row in enumerate(selected(path, found, rows, config.select)):
        study_id = columns.text(row, "study_id") or f"{path.name} row {index + 1}"
        source.studies.append(_study(path.parent, columns, row, study_id))
    source.has_labels = any(study.codes is not None for study in source.studies)
    return source


def _study(folder: Path, columns: Columns, row: Row, study_id: str) -> Study:
    return Study(
        study_id=study_id,
        patient_id=columns.text(row, "patient_id"),
        images=tuple(folder / name for name in _paths(columns.get(row, "image"))),
        report=columns.text(row, "report"),
        split=columns.text(row, "split"),
        codes=parse_codes(columns.get(row, "labels")),
        view=columns.text(row, "view"),
        age=number(columns.get(row, "age")),
        sex=sex(columns.get(row, "sex")),
        day=number(columns.get(row, "day")),
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
