# SPDX-License-Identifier: Apache-2.0
"""Patients of notes from a table beside them, for formats whose files name none."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import ColumnMap, SourceTable
from medflare.data.records import Note, RecordError

FIELDS: ColumnMap = {
    "note": ["note", "note_id", "doc_id", "file"],
    "patient": ["patient", "patient_id", "subject_id"],
}
"""Our field -> the columns that are tried."""
ENDINGS = ("", ".txt", ".ann", ".con", ".xmi")
"""Of a note's files, with which a table may name it."""


def name_patients(source: SourceRecords, file: Path) -> None:
    """Give the notes of a source the patients of a table; a note that it does not name is a fault.

    A note is named by its id, the path of its file below `root`, with or without the ending; or by the file's
    name alone where no other note has it.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    table = SourceTable(file, FIELDS)
    source.skipped += table.unreadable
    patients = defaultdict[str, set[str]](set)
    for row in table.rows:
        name = table.text(row, "note").replace("\\", "/").removeprefix("./")
        patients[name].add(table.text(row, "patient"))
    alone = Counter(Path(note.note_id).name for note in source.notes)
    named = []
    for note in source.notes:
        with source.skipping(note.note_id):
            named.append(replace(note, patient_id=_patient(note, patients, alone, file)))
    source.notes = named


def _patient(note: Note, patients: dict[str, set[str]], alone: Counter[str], file: Path) -> str:
    bare = Path(note.note_id).name
    names = [note.note_id, *([bare] if alone[bare] == 1 else [])]
    written = [f"{name}{ending}" for name in names for ending in ENDINGS]
    found = next((patients[name] for name in written if name in patients), set[str]())
    if found - {""} and len(found) == 1:
        return next(iter(found))
    if len(found) > 1:
        raise RecordError("ambiguous patient", f"{file.name}: names {len(found)} patients for {note.note_id}")
    raise RecordError("missing patient id", f"{file.name}: has no row with a patient for {note.note_id}")
