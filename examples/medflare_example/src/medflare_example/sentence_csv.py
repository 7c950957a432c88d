# SPDX-License-Identifier: Apache-2.0
"""Texts in a CSV of one column, `sentence`; they carry no marks, so the cohort says `tasks: []`."""

from __future__ import annotations

from medflare.core.errors import DataError
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import SourceTable, find_file
from medflare.data.records import Note
from medflare.data.settings.cohort import CohortConfig

SETTINGS = {"file", "tasks"}


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or sentences.csv of `config.root`."""
    if config.tasks:
        raise DataError(f"{config.root}: sentences carry no marks; set 'tasks: []'.")
    table = SourceTable(find_file(config.root, ("sentences.csv",), config.file), {"sentence": "sentence"})
    source = SourceRecords(skipped=table.unreadable)
    for number, row in enumerate(table.rows, 1):
        source.notes.append(Note(note_id=f"s{number}", text=table.text(row, "sentence"), split="", tasks=()))
    return source
