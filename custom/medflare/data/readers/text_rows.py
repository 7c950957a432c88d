# SPDX-License-Identifier: Apache-2.0
"""What readers of questions and of summaries share: rows of JSON lines with named columns, id and split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.data.readers.common import (
    ColumnMap,
    Columns,
    Row,
    SourceRecords,
    find_file,
    read_table,
    row_location,
    select_rows,
)
from medflare.data.settings.cohort import CohortConfig
from medflare.data.splits import split_name


class RowError(Exception):
    """A row that cannot be used; `reason` is a kind to count by, the text names file and line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One row of a table; `where` is "file:line", `record` its id, `where` again if it has none."""

    columns: Columns
    row: Row
    record: str
    where: str
    split: str

    def words(self, name: str) -> str:
        """The text of our field `name`, white space in order; RowError if nothing is there."""
        found = tidy_whitespace(self.columns.text(self.row, name))
        if not found:
            columns = " and ".join(f"'{column}'" for column in self.columns.names(name))
            raise RowError(f"empty {name}", f"{self.where}: nothing stands in {columns}, the {name}")
        return found


def tidy_whitespace(text: str) -> str:
    """`text` with single spaces inside a line and at most one empty line between two."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept).strip()


def text_rows(
    config: CohortConfig, defaults: ColumnMap, required: Sequence[str], source: SourceRecords
) -> Iterator[TextRow]:
    """The rows of `config.file`, or of every .jsonl file of `config.root`, that `select` keeps.

    A file's name is the split of its rows where they have none ("dev.jsonl"), unless `columns` says
    `split: null`. Unreadable lines, ids used twice and unknown splits go to `source.skipped`.
    """
    unnamed = "split" in config.columns and config.columns["split"] is None
    for path in _files(config):
        found, rows, bad = read_table(path)
        source.skipped += bad
        columns = Columns(path, found, defaults, config.columns, required)
        stem = "" if unnamed else split_name(path.name.split(".")[0]) or ""
        for row in select_rows(path, found, rows, config.select):
            where = row_location(path, row)
            record = columns.text(row, "id") or where
            written = columns.text(row, "split")
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
                yield TextRow(columns=columns, row=row, record=record, where=where, split=split)


def _files(config: CohortConfig) -> list[Path]:
    first = find_file(config.root, ("*.jsonl", "*.jsonl.gz"), config.file)
    if config.root.is_dir() and config.file is None:
        return sorted([*config.root.glob("*.jsonl"), *config.root.glob("*.jsonl.gz")])
    return [first]


def has_splits(splits: Sequence[str]) -> bool:
    """Whether every record has a split of its own; a source where some lack one gets a new one for all."""
    return bool(splits) and all(splits)


def shorten(value: Any) -> str:
    """What a file says, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
