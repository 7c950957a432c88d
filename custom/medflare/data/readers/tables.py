# SPDX-License-Identifier: Apache-2.0
"""Tables with named columns, and which of their rows a site selects."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from medflare.core.errors import DataError
from medflare.data.records import Skipped
from medflare.data.settings.cohort import CohortConfig

log = logging.getLogger(__name__)

TableRow = dict[str, Any]
LINE_KEY = "\0line"
"""Key under which `read_table` gives a row its line number; no column has this name."""
ColumnMap = Mapping[str, str | int | list[str] | None]


TEXT_TABLES = (("*.jsonl", "*.jsonl.gz"), ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz"))
"""Tables of texts: all of the first kind that a folder has are read."""


def same_names(*names: str) -> ColumnMap:
    """Return fields whose columns have their own names."""
    return {name: name for name in names}


def find_file(root: Path, names: Sequence[str], named: str | None = None) -> Path:
    """Return the first of `names` (patterns) below `root`, or `named`, or `root` itself if it is a file.

    Raises:
        DataError: there is no such file; names what the folder holds.
    """
    if root.is_file() and not named:
        return root
    if not root.is_dir():
        raise DataError(f"{root}: no such file or folder. Check 'root' in site.yaml.")
    file = search_file(root, [named] if named else names)
    if file is not None:
        return file
    wanted = named or " or ".join(names)
    raise DataError(
        f"{root}: expected {wanted}; the folder holds {listing(root)}. Check 'root', or name it in 'file'."
    )


def listing(folder: Path) -> str:
    """Return the first names in a folder, for messages."""
    return ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"


def text_tables(config: CohortConfig) -> list[Path]:
    """Return `config.file`, or all .jsonl files of `config.root`, or its .csv and .tsv where it has none.

    Each of them may be gzipped. Tables beside .jsonl files are most often of something else.

    Raises:
        DataError: there is none.
    """
    if config.file is not None or not config.root.is_dir():
        return [find_file(config.root, (), config.file)]
    paths = tables_in(config.root)
    if not paths:
        raise DataError(
            f"{config.root}: expected tables of texts (.jsonl, .csv or .tsv, also .gz); the folder holds "
            f"{listing(config.root)}. Check 'root', or name the table in 'file'."
        )
    return paths


def tables_in(folder: Path) -> list[Path]:
    """Return the tables of texts of a folder, of the first kind of TEXT_TABLES that it has."""
    for kind in TEXT_TABLES:
        if paths := sorted(path for pattern in kind for path in folder.glob(pattern) if path.is_file()):
            return paths
    return []


def search_file(root: Path, names: Sequence[str]) -> Path | None:
    """Return the first file below `root` that fits one of the patterns, None where there is none."""
    for name in names:
        files = sorted(path for path in root.glob(name) if path.is_file())
        if files:
            return files[0]
    return None


def read_table(path: Path) -> tuple[list[str], list[TableRow], list[Skipped]]:
    """Return columns, rows and unreadable lines of a .csv, .tsv or .jsonl file, also gzipped.

    A text that is not UTF-8 is read as Windows-1252, with a warning; CSV may use commas, semicolons or tabs.

    Raises:
        DataError: another suffix, or a file that breaks off.
    """
    suffix = path.name.removesuffix(".gz").rsplit(".", 1)[-1].lower()
    readers = {"csv": _read_csv, "tsv": _read_csv, "jsonl": _read_json_lines, "ndjson": _read_json_lines}
    if suffix not in readers:
        raise DataError(f"{path}: expected a .csv, .tsv or .jsonl table (also .gz), found '.{suffix}'.")
    try:
        for encoding, errors in (("utf-8-sig", "strict"), ("cp1252", "replace")):
            try:
                with _opened(path) as raw, io.TextIOWrapper(raw, encoding, errors, newline="") as text:
                    return readers[suffix](path, text)
            except UnicodeDecodeError:
                log.warning("%s: is not UTF-8; read as Windows-1252. Check letters with accents.", path)
    except (OSError, EOFError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read to the end: {error}. Copy the file again.") from None
    raise AssertionError("the second encoding cannot fail")


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _read_csv(path: Path, text: io.TextIOWrapper) -> tuple[list[str], list[TableRow], list[Skipped]]:
    csv.field_size_limit(1 << 27)
    header = text.readline()
    text.seek(0)
    comma = max(",;\t", key=header.count)
    table = csv.DictReader(text, delimiter=comma, restkey="\0")
    columns = [name for name in (table.fieldnames or []) if name is not None]
    rows, bad = [], []
    short: list[int] = []
    for row in table:
        short += [table.line_num] if None in row.values() else []
        if "\0" in row:
            detail = f"line {table.line_num} has more values than the header has columns"
            bad.append(_unreadable(path, table.line_num, detail))
        else:
            kept = {key: value if value is not None else "" for key, value in row.items()}
            rows.append(kept | {LINE_KEY: table.line_num})
    # The last row alone is short: the file was cut. Some programs leave empty ends out of all rows.
    if short == [table.line_num] and len(rows) > 1:
        detail = f"line {short[0]}, the last, has fewer values than the header has columns: was the file cut?"
        bad.append(_unreadable(path, short[0], detail))
        rows.pop()
    return columns, rows, bad


def _read_json_lines(path: Path, text: io.TextIOWrapper) -> tuple[list[str], list[TableRow], list[Skipped]]:
    rows: list[TableRow] = []
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


def _unreadable(path: Path, number: int, detail: str) -> Skipped:
    return Skipped(record=f"{path.name}:{number}", reason="unreadable row", detail=detail)


class SourceTable:
    """A .csv, .tsv or .jsonl file, also gzipped, with our field names on its columns.

    Args:
        fields: our field -> the format's column(s); used when the file has them.
        chosen: the site's `columns`; every column named there must exist.
        required: fields without which the format makes no sense; default all.

    Attributes:
        columns: the file's own; rows: that could be read; unreadable: the other lines.

    Raises:
        DataError: the file cannot be read, or its columns do not fit: lists every column that it lacks, the
            columns it has and close matches; also a field that the format does not have.
    """

    def __init__(
        self,
        path: Path,
        fields: ColumnMap,
        chosen: ColumnMap | None = None,
        required: Sequence[str] | None = None,
    ) -> None:
        self.path = path
        self.columns, self.rows, self.unreadable = read_table(path)
        self._names: dict[str, list[str]] = {}
        chosen = chosen or {}
        problems = [
            f"'columns: {unknown}' is no field of this format; it has {', '.join(fields)}"
            for unknown in sorted(set(chosen) - set(fields))
        ]
        for name, default in fields.items():
            needed = required is None or name in required
            wanted = _as_list(chosen.get(name, default))
            present = [column for column in wanted if column in self.columns]
            missing = [column for column in wanted if column not in self.columns]
            if needed and not wanted:
                problems.append(f"'{name}' cannot be null, this format needs it")
            elif missing and (name in chosen or (needed and not present)):
                problems += [
                    f"'{name}' should be column '{column}'{_near(column, self.columns)}" for column in missing
                ]
            problems += [f"'{column}' stands {count} times" for column, count in self._repeated(present)]
            self._names[name] = present
        if problems:
            raise DataError(
                f"{path}: {len(problems)} column(s) do not fit: {'; '.join(problems)}. "
                f"Columns found: {', '.join(self.columns) or 'none'}. Set 'columns' in site.yaml."
            )

    def _repeated(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """Return the columns that the file has more than once, of which a row holds the last alone."""
        return [(name, self.columns.count(name)) for name in names if self.columns.count(name) > 1]

    def select(self, select: Mapping[str, Any]) -> Iterator[TableRow]:
        """Return the rows that `select` keeps, as `select_rows`."""
        return select_rows(self.path, self.columns, self.rows, select)

    def check_covariates(self, names: Iterable[str]) -> None:
        """Raise DataError unless the file has the columns that the site names as covariates."""
        if missing := [name for name in names if name not in self.columns]:
            raise DataError(
                f"{self.path}: 'visits.covariates' names {', '.join(missing)}. "
                f"Columns found: {', '.join(self.columns)}."
            )

    def has(self, name: str) -> bool:
        """Return whether the file has a column for our field `name`."""
        return bool(self._names.get(name))

    def get(self, row: TableRow, name: str) -> Any:
        """Return the first value for `name` that is not empty, else None."""
        for column in self._names.get(name, ()):
            value = row.get(column)
            if value is not None and value != "" and value != []:
                return value
        return None

    def names(self, name: str) -> list[str]:
        """Return the file's columns for our field `name`, in the order in which they are tried."""
        return self._names.get(name, [])

    def text(self, row: TableRow, name: str) -> str:
        """Return the value for `name` as stripped text, "" where there is none."""
        value = self.get(row, name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return "" if value is None or value != value else str(value).strip()

    def location(self, row: TableRow) -> str:
        """Return where a row stands, as "manifest.csv:12", for messages."""
        return f"{self.path.name}:{row[LINE_KEY]}" if LINE_KEY in row else self.path.name


def _as_list(value: str | int | list[str] | None) -> list[str]:
    return [] if value is None else list(value) if isinstance(value, list) else [str(value)]


def _near(column: str, columns: Sequence[str]) -> str:
    lowered = {name.lower(): name for name in columns}
    close = difflib.get_close_matches(column.lower(), list(lowered), n=1)
    return f" (did you mean '{lowered[close[0]]}'?)" if close else ""


def select_rows(
    path: Path, columns: Sequence[str], rows: Sequence[TableRow], select: Mapping[str, Any]
) -> Iterator[TableRow]:
    """Yield the rows whose columns have one of the values that `select` allows.

    Raises:
        DataError: a column that the table does not have, or has twice.
    """
    if twice := [column for column in select if columns.count(column) > 1]:
        raise DataError(f"{path}: 'select' names {', '.join(twice)}, which stands there more than once.")
    unknown = [f"'{column}'{_near(column, columns)}" for column in select if column not in columns]
    if unknown:
        raise DataError(f"{path}: 'select' names {', '.join(unknown)}. Columns found: {', '.join(columns)}.")
    allowed = {
        column: {str(value) for value in (values if isinstance(values, list) else [values])}
        for column, values in select.items()
    }
    for row in rows:
        if all(str(row.get(column)) in values for column, values in allowed.items()):
            yield row
