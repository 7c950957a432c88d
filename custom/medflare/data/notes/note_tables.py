# SPDX-License-Identifier: Apache-2.0
"""Annotated notes written as tables that are read again with the same notes, tasks and annotated types."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.inventory import ENTITY_TYPES, TASKS, TYPES
from medflare.data.notes.note_writers import notes_row
from medflare.data.records import Note

FORMAT = "notes_jsonl"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of a note by its annotation: `Note.tasks` and `Note.annotated`, no part of its line."""

    tasks: tuple[str, ...] = TASKS
    annotated: tuple[str, ...] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a cohort that say so; none where everything is covered."""
        some = self.annotated is not None and set(self.annotated) != set(TYPES)
        return {
            **({"tasks": list(self.tasks)} if self.tasks != TASKS else {}),
            **({"annotated": list(self.annotated or ())} if some else {}),
        }

    @property
    def heads(self) -> tuple[str, ...]:
        """The types of entities that were looked for; modifiers are none."""
        return tuple(name for name in ENTITY_TYPES if self.annotated is None or name in self.annotated)


def coverage(notes: Iterable[Note]) -> Coverage:
    """Return what the annotation of most of the notes covers."""
    counts = Counter(Coverage(note.tasks, note.annotated) for note in notes)
    return counts.most_common(1)[0][0] if counts else Coverage()


def write_note_tables(notes: Sequence[Note], folder: Path) -> list[dict[str, Any]]:
    """Write the notes as JSON lines into `folder`; return the cohorts, without `root`, that read them again.

    Notes whose annotation covers different types or tasks lie in tables of their own. Otherwise a model would
    be scored by what nobody marked.
    """
    parts: dict[Coverage, list[Note]] = {}
    for note in notes:
        parts.setdefault(Coverage(note.tasks, note.annotated), []).append(note)
    folder.mkdir(parents=True, exist_ok=True)
    cohorts = []
    for number, (covers, part) in enumerate(parts.items(), start=1):
        file = "notes.jsonl" if len(parts) == 1 else f"notes-{number}.jsonl"
        lines = "".join(f"{json.dumps(notes_row(note), ensure_ascii=False)}\n" for note in part)
        (folder / file).write_text(lines, encoding="utf-8", newline="\n")
        place = {"file": file} if len(parts) > 1 else {}
        cohorts.append({"format": FORMAT, **place, **covers.settings})
    return cohorts
