# SPDX-License-Identifier: Apache-2.0
"""Shared part of readers of questions and summaries: rows of a table with named columns, id and split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import ColumnMap, SourceTable, TableRow, text_tables
from medflare.data.records import RecordError
from medflare.data.settings.cohort import CohortConfig
from medflare.data.splits import split_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One row of a table; `where` is "file:line", `record` its id, `where` again if it has none."""

    table: SourceTable
    row: TableRow
    record: str
    where: str
    split: str

    def text(self, name: str) -> str:
        """Return the text of our field `name`, "" where there is none."""
        return self.table.text(self.row, name)

    def words(self, name: str) -> str:
        """Return the text of our field `name` with tidy white space; RecordError if it is empty."""
        text = tidy_whitespace(self.text(name))
        if not text:
            columns = " and ".join(f"'{column}'" for column in self.table.names(name))
            raise RecordError(f"empty {name}", f"{self.where}: nothing stands in {columns}, the {name}")
        return text

    def listed(self, name: str) -> list[Any]:
        """Return the list of our field `name`, empty where there is none; RecordError if it is no list."""
        value = self.table.get(self.row, name) or []
        if not isinstance(value, list):
            raise RecordError(f"malformed {name}", f"{self.where}: expected a list, found {shorten(value)}")
        return value


def tidy_whitespace(text: str) -> str:
    """Return `text` with single spaces inside a line and at most one empty line between two."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept).strip()


def text_rows(
    config: CohortConfig, fields: ColumnMap, required: Sequence[str], source: SourceRecords
) -> Iterator[TextRow]:
    """Yield the rows of `config.file`, or of the tables of `config.root`, that `select` keeps.

    A file's name is the split of its rows where they have none ("dev.jsonl"), unless `columns` says
    `split: null`. Unreadable lines, ids used twice and unknown splits go to `source.skipped`.
    """
    unnamed = "split" in config.columns and config.columns["split"] is None
    for path in text_tables(config):
        table = SourceTable(path, fields, config.columns, required)
        source.skipped += table.unreadable
        stem = "" if unnamed else split_name(path.name.split(".")[0]) or ""
        for row in table.select(config.select):
            where = table.location(row)
            record = table.text(row, "id") or where
            written = table.text(row, "split")
            split = split_name(written) if written else stem
            if record in source.places:
                detail = f"{where}: the id of {source.places[record]}; the first one is kept"
                source.skip(f"{record} ({where})", "duplicated id", detail)
            elif split is None:
                detail = (
                    f"{where}: {written!r} is none of train, val, test; 'columns: {{split: null}}' ignores it"
                )
                source.skip(record, "unknown split", detail)
            else:
                source.places[record] = where
                yield TextRow(table=table, row=row, record=record, where=where, split=split)


def shorten(value: Any) -> str:
    """Return a value of a file, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
