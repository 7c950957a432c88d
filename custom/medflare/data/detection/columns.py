# SPDX-License-Identifier: Apache-2.0
"""Guess of the columns of a table that hold image, report, patient and the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medflare.data.detection.guess import CohortGuess
from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.readers.tables import LINE_KEY, TableRow, read_table
from medflare.data.splits import split_name

NAMES: dict[str, re.Pattern[str]] = {
    "patient_id": re.compile(r"patient|subject|person|\bmrn\b|^pid$", re.IGNORECASE),
    "study_id": re.compile(r"study|accession|exam|^u?id$|^case", re.IGNORECASE),
    "age": re.compile(r"^(patient_?)?(age|alter|âge)(_|$)", re.IGNORECASE),
    "sex": re.compile(r"^(patient_?)?(sexe?|gender|geschlecht)$", re.IGNORECASE),
    "view": re.compile(r"^view", re.IGNORECASE),
    "day": re.compile(r"^(day|offset)", re.IGNORECASE),
    "date": re.compile(r"date|datum", re.IGNORECASE),
    "split": re.compile(r"^(split|set|subset|partition)$", re.IGNORECASE),
}
REPORT_WORDS = ("findings", "impression", "report", "radiology_text", "befund", "text")
SITE_NAMES = re.compile(r"^(site|hospital|cent(er|re)|institution|clinic)(_?(id|name))?$", re.IGNORECASE)
MOST_SITES = 50
SAMPLED = 400
"""Rows that are looked at; a guess needs no more."""
LONGEST_PATH = 240
"""Characters of a path; longer values are texts."""
IMAGES = (*PICTURES, *VOLUMES, ".dcm")


def guess_studies_table(path: Path) -> CohortGuess | None:
    """Return how a table of one study a row is read as a `manifest`; None where it has no images or reports.

    Raises:
        DataError: the file cannot be read as a table.
    """
    columns, rows, _ = read_table(path)
    rows = rows[:SAMPLED]
    image = _image_column(columns, rows, path.parent)
    report = _report_column([column for column in columns if column != image], rows)
    if image is None or report is None:
        return None
    chosen: dict[str, Any] = {"image": image, "report": report}
    reasons = {
        "columns.image": "its values are files that exist",
        "columns.report": f"{mean_words(report, rows):.0f} words in the mean",
    }
    free = [column for column in columns if column not in (image, report)]
    chosen |= named_columns(free, rows)
    remarks = []
    if "day" in chosen:
        chosen.pop("date", None)
    if "patient_id" not in chosen:
        chosen["patient_id"] = None
        reasons["columns.patient_id"] = "no column names the patient, so each study is its own"
        remarks.append(
            "No column names the patient: two studies of one person may be in training and test. Add one."
        )
    if "study_id" not in chosen:
        chosen["study_id"] = None
        reasons["columns.study_id"] = "no column has an id of its own for each row; rows are numbered"
    if "split" not in chosen and "split" in columns:
        chosen["split"] = None
        reasons["columns.split"] = "the column has no training rows; patients are split 80/10/10 instead"
    return CohortGuess(
        format="manifest",
        settings={"file": path.name, "columns": chosen},
        reasons={"format": f"{path.name} has a column of images and one of reports", **reasons},
        remarks=tuple(remarks),
        sites=guess_sites(columns, rows),
    )


def named_columns(columns: Sequence[str], rows: Sequence[TableRow]) -> dict[str, str]:
    """Return our field -> the column whose name and values say that it is one, each column for one field."""
    free, found = list(columns), dict[str, str]()
    for name, pattern in NAMES.items():
        column = next(
            (column for column in free if pattern.search(column) and _fits(name, column, rows)), None
        )
        if column is not None:
            found[name] = column
            free.remove(column)
    return found


def values_of(column: str, rows: Sequence[TableRow]) -> list[Any]:
    """Return the values of a column that are not empty."""
    return [row[column] for row in rows if row.get(column) not in (None, "", [])]


def _image_column(columns: Sequence[str], rows: Sequence[TableRow], folder: Path) -> str | None:
    """Return the column most of whose values are image files that exist."""
    shares = {}
    for column in columns:
        values = values_of(column, rows)[:40]
        existing = sum(_is_image_file(value, folder) for value in values)
        if values and existing > len(values) / 2:
            shares[column] = existing / len(values)
    return max(shares, key=lambda column: shares[column]) if shares else None


def _is_image_file(value: Any, folder: Path) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    name = str(first).split(";")[0].strip()
    if len(name) > LONGEST_PATH or not (name.lower().endswith(IMAGES) or not Path(name).suffix):
        return False
    return (folder / name).is_file()


def _report_column(columns: Sequence[str], rows: Sequence[TableRow]) -> str | None:
    """Return the column with a report's name that has texts, else the one with the longest texts."""
    texts = {column: mean_words(column, rows) for column in columns}
    for word in REPORT_WORDS:
        named = [column for column in columns if word in column.lower() and texts[column] >= 4]
        if named:
            return min(named, key=len)
    longest = max(texts, key=lambda column: texts[column], default=None)
    return longest if longest is not None and texts[longest] >= 8 else None


def mean_words(column: str, rows: Sequence[TableRow]) -> float:
    """Return the mean number of words of a column's values that are not empty."""
    values = [str(value) for value in values_of(column, rows)]
    return sum(len(value.split()) for value in values) / len(values) if values else 0.0


def _fits(name: str, column: str, rows: Sequence[TableRow]) -> bool:
    """Return whether a column's values can be what its name says."""
    values = [str(value) for value in values_of(column, rows)]
    if not values:
        return False
    if name == "study_id":
        return len(values) == len(rows) and len(set(values)) == len(values)
    if name == "patient_id":
        return len(values) > len(rows) / 2 and not mean_words(column, rows) > 3
    if name == "split":
        return all(split_name(value) for value in values) and "train" in map(split_name, values)
    if name in ("age", "day"):
        return all(re.match(r"\s*-?\d", value) for value in values)
    return True


def guess_sites(columns: Sequence[str], rows: Sequence[TableRow]) -> dict[str, tuple[str, ...]]:
    """Return column -> its values, of the columns that seem to name hospitals."""
    found = {}
    for column in columns:
        if column != LINE_KEY and SITE_NAMES.match(column):
            values = tuple(sorted({str(value) for value in values_of(column, rows)}))
            if 1 < len(values) <= MOST_SITES:
                found[column] = values
    return found
