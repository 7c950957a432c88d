# SPDX-License-Identifier: Apache-2.0
"""Annotated notes written as tables that are read again with the same notes, tasks and annotated types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medflare.core.inventory import TASKS, TYPES
from medflare.data.notes.note_writers import notes_row
from medflare.data.records import Note

FORMAT = "notes_jsonl"


def write_note_tables(notes: Sequence[Note], folder: Path) -> list[dict[str, Any]]:
    """Write the notes as JSON lines into `folder`; return the cohorts, without `root`, that read them again.

    What an annotation covers is no part of a line: notes of sources that covered different types, or
    different tasks, lie in tables of their own. Without it a model would be scored by what nobody marked.
    """
    parts: dict[tuple[Any, ...], list[Note]] = {}
    for note in notes:
        parts.setdefault((note.tasks, note.annotated), []).append(note)
    folder.mkdir(parents=True, exist_ok=True)
    cohorts = []
    for number, ((tasks, annotated), part) in enumerate(parts.items(), start=1):
        file = "notes.jsonl" if len(parts) == 1 else f"notes-{number}.jsonl"
        lines = "".join(f"{json.dumps(notes_row(note), ensure_ascii=False)}\n" for note in part)
        (folder / file).write_text(lines, encoding="utf-8", newline="\n")
        cohort: dict[str, Any] = {"format": FORMAT}
        if len(parts) > 1:
            cohort["file"] = file
        if tasks != TASKS:
            cohort["tasks"] = list(tasks)
        if annotated is not None and set(annotated) != set(TYPES):
            cohort["annotated"] = list(annotated)
        cohorts.append(cohort)
    return cohorts
