# SPDX-License-Identifier: Apache-2.0
"""What readers share: tables with named columns, selection of rows, report sections, label conventions."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import DataError
from medflare.data.records import Note, Question, Skipped, Study, Summary

log = logging.getLogger(__name__)

Row = dict[str, Any]
LINE_KEY = "\0line"
"""Key under which `read_table` gives a row its line number; no column has this name."""
ColumnMap = Mapping[str, str | int | list[str] | None]


@dataclass(slots=True, kw_only=True)
class SourceRecords:
    """What a reader found, before cleaning, labelling and splitting.

    Attributes:
        studies: `report` as in the source (may be empty), `split` "" where the source has none.
        has_split, has_labels: whether the source brings a split and 14 codes of its own.
        places: record id -> the file (and line) where it stands, for messages.
        left_out: kind of annotation line -> how many; lines that a format has and nobody here uses.
        too_masked: summaries left out for `most_masks`.
    """

    studies: list[Study] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    has_split: bool = False
    has_labels: bool = False
    places: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    too_masked: int = 0

    def skip(self, record: str, reason: str, detail: str) -> None:
        """Lists one record that cannot be used."""
        self.skipped.append(Skipped(record=record, reason=reason, detail=detail))


def find_file(root: Path, names: Sequence[str], named: str | None = None) -> Path:
    """The first of `names` (patterns) below `root`, or `named`, or `root` itself if it is a file."""
    if root.is_file() and not named:
        return root
    if not root.is_dir():
        raise DataError(f"{root}: no such file or folder. Check 'root' in site.yaml.")
    found = search_file(root, [named] if named else names)
    if found is not None:
        return found
    here = ", ".join(sorted(path.name for path in root.iterdir())[:12]) or "nothing"
    wanted = named or " or ".join(names)
    raise DataError(
        f"{root}: expected {wanted}; the folder holds {here}. Check 'root', or name it in 'file'."
    )


def search_file(root: Path, names: Sequence[str]) -> Path | None:
    """The first file below `root` that fits one of the patterns, None where there is none."""
    for name in names:
        found = sorted(path for path in root.glob(name) if path.is_file())
        if found:
            return found[0]
    return None


def read_table(path: Path) -> tuple[list[str], list[Row], list[Skipped]]:
    """Columns, rows and unreadable lines of a .csv, .tsv or .jsonl file, also gzipped.

    A text that is not UTF-8 is read as Windows-1252, with a warning; CSV may use commas, semicolons or tabs.
    """
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[-1].lower()
    readers = {"csv": _read_csv, "tsv": _read_csv, "jsonl": _read_json_lines, "ndjson": _read_json_lines}
    if kind not in readers:
        raise DataError(f"{path}: expected a .csv, .tsv or .jsonl table (also .gz), found '.{kind}'.")
    try:
        for encoding, errors in (("utf-8-sig", "strict"), ("cp1252", "replace")):
            try:
                with _opened(path) as raw, io.TextIOWrapper(raw, encoding, errors, newline="") as text:
                    return readers[kind](path, text)
            except UnicodeDecodeError:
                log.warning("%s: is not UTF-8; read as Windows-1252. Check letters with accents.", path)
    except (OSError, EOFError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read to the end: {error}. Copy the file again.") from None
    raise AssertionError("the second encoding cannot fail")


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _read_csv(path: Path, text: io.TextIOWrapper) -> tuple[list[str], list[Row], list[Skipped]]:
    csv.field_size_limit(1 << 27)
    header = text.readline()
    text.seek(0)
    comma = max(",;\t", key=header.count)
    table = csv.DictReader(text, delimiter=comma, restkey="\0")
    columns = [name for name in (table.fieldnames or []) if name is not None]
    rows, bad = [], []
    for row in table:
        if "\0" in row:
            detail = f"line {table.line_num} has more values than the header has columns"
            bad.append(_unreadable(path, table.line_num, detail))
        else:
            kept = {key: value if value is not None else "" for key, value in row.items()}
            rows.append(kept | {LINE_KEY: table.line_num})
    return columns, rows, bad


def _read_json_lines(path: Path, text: io.TextIOWrapper) -> tuple[list[str], list[Row], list[Skipped]]:
    rows: list[Row] = []
    bad: list[Skipped] = []
    columns: dict[str, None] = {}
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            bad.append(_unreadable(path, number, f"line {number} is not JSON: {error.msg}"))
            continue
        if not isinstance(row, dict):
            bad.append(_unreadable(path, number, f"line {number} is not a JSON object"))
            continue
        columns.update(dict.fromkeys(row))
        rows.append(row | {LINE_KEY: number})
    return list(columns), rows, bad


def row_location(path: Path, row: Row) -> str:
    """Where a row stands, as "manifest.csv:12", for messages."""
    return f"{path.name}:{row[LINE_KEY]}" if LINE_KEY in row else path.name


def _unreadable(path: Path, number: int, detail: str) -> Skipped:
    return Skipped(record=f"{path.name}:{number}", reason="unreadable row", detail=detail)


class Columns:
    """Our field names on one table's columns; `get` reads a row by our name.

    Args:
        defaults: our field -> the format's column(s); used when the table has them.
        chosen: the site's `columns`; every column named there must exist.
        required: fields without which the format makes no sense.

    Raises:
        DataError: lists every column that the file lacks, the columns found and close matches; also
            a field that the format does not have.
    """

    def __init__(
        self,
        path: Path,
        found: Sequence[str],
        defaults: ColumnMap,
        chosen: ColumnMap,
        required: Sequence[str],
    ) -> None:
        problems = []
        self._names: dict[str, list[str]] = {}
        for unknown in sorted(set(chosen) - set(defaults)):
            problems.append(f"'columns: {unknown}' is no field of this format; it has {', '.join(defaults)}")
        for name, default in defaults.items():
            wanted = _as_list(chosen.get(name, default))
            present = [column for column in wanted if column in found]
            lacking = [column for column in wanted if column not in found]
            if name in required and not wanted:
                problems.append(f"'{name}' cannot be null, this format needs it")
            elif lacking and (name in chosen or (name in required and not present)):
                problems += [
                    f"'{name}' should be column '{column}'{_near(column, found)}" for column in lacking
                ]
            self._names[name] = present
        if problems:
            raise DataError(
                f"{path}: {len(problems)} column(s) do not fit: {'; '.join(problems)}. "
                f"Columns found: {', '.join(found) or 'none'}. Set 'columns' in site.yaml."
            )

    def has(self, name: str) -> bool:
        """Whether the table has a column for our field `name`."""
        return bool(self._names.get(name))

    def get(self, row: Row, name: str) -> Any:
        """The first value for `name` that is not empty, else None."""
        for column in self._names.get(name, ()):
            value = row.get(column)
            if value is not None and value != "" and value != []:
                return value
        return None

    def names(self, name: str) -> list[str]:
        """The table's columns for our field `name`, in the order in which they are tried."""
        return self._names.get(name, [])

    def text(self, row: Row, name: str) -> str:
        """The value for `name` as stripped text, "" where there is none."""
        value = self.get(row, name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return "" if value is None or value != value else str(value).strip()


def _as_list(value: str | int | list[str] | None) -> list[str]:
    return [] if value is None else list(value) if isinstance(value, list) else [str(value)]


def _near(column: str, found: Sequence[str]) -> str:
    lowered = {name.lower(): name for name in found}
    close = difflib.get_close_matches(column.lower(), list(lowered), n=1)
    return f" (did you mean '{lowered[close[0]]}'?)" if close else ""


def select_rows(
    path: Path, found: Sequence[str], rows: Sequence[Row], select: Mapping[str, Any]
) -> Iterator[Row]:
    """The rows whose columns have one of the values that `select` allows; DataError on an unknown column."""
    unknown = [f"'{column}'{_near(column, found)}" for column in select if column not in found]
    if unknown:
        raise DataError(f"{path}: 'select' names {', '.join(unknown)}. Columns found: {', '.join(found)}.")
    allowed = {
        column: {str(value) for value in (values if isinstance(values, list) else [values])}
        for column, values in select.items()
    }
    for row in rows:
        if all(str(row.get(column)) in values for column, values in allowed.items()):
            yield row


def parse_number(value: Any) -> float | None:
    """`value` as a float, None where it is empty or no number; "45Y" style ages are read."""
    if value is None or isinstance(value, bool):
        return None
    found = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*(?:[yY].*)?", str(value))
    return float(found.group(1)) if found else None


def parse_sex(value: Any) -> str | None:
    """ "F", "M" or None."""
    letter = str(value or "").strip()[:1].upper()
    return letter if letter in ("F", "M") else None


_CHEXPERT = {"1": Code.POSITIVE, "0": Code.NEGATIVE, "-1": Code.UNCERTAIN, "": Code.BLANK}


def chexpert_codes(row: Row) -> tuple[int, ...] | None:
    """14 codes from CheXpert's columns (1 positive, 0 negative, -1 uncertain, else blank); None if absent."""
    lowered = {str(key).strip().lower(): value for key, value in row.items()}
    codes = []
    for condition in CONDITIONS:
        value = lowered.get(condition, "missing")
        text = "" if value is None or value != value else str(value).strip().removesuffix(".0")
        if text not in _CHEXPERT:
            return None
        codes.append(int(_CHEXPERT[text]))
    if codes[-1] != Code.POSITIVE:
        codes[-1] = int(Code.BLANK)
    return tuple(codes)


def choose_sections(findings: str, impression: str, sections: str) -> str:
    """The part of a sectioned report that `CohortConfig.sections` asks for; "" where it is not there."""
    if sections == "findings":
        return findings
    if sections == "impression":
        return impression
    if sections == "findings_or_impression":
        return findings or impression
    return " ".join(part for part in (findings, impression) if part)
