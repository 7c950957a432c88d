# SPDX-License-Identifier: Apache-2.0
"""Two small notes in the layout of every format of annotated notes, and a way to read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medflare.data.records import Note

TEXT = "Severe pain in the left wrist and ankle .\nNo fever ."
ANN = (
    "T1\tproblem 7 11\tpain\n"
    "T2\tseverity 0 6\tSevere\n"
    "T3\tbodyloc 19 23;34 39\tleft ankle\n"
    "T4\tproblem 45 50\tfever\n"
    "T5\tnegation 42 44\tNo\n"
    "R1\thasAttr Arg1:T1 Arg2:T2\n"
    "R2\thasAttr Arg1:T1 Arg2:T3\n"
    "R3\thasAttr Arg1:T4 Arg2:T5\n"
)


def write(path: Path, text: str) -> Path:
    """Writes bytes, so that no line end is translated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return path


def brat(root: Path, text: str = TEXT, ann: str | None = ANN, name: str = "n1") -> Path:
    write(root / f"{name}.txt", text)
    if ann is not None:
        write(root / f"{name}.ann", ann)
    return root


def jsonl(root: Path, *rows: dict[str, Any]) -> Path:
    write(root / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return root


def row(**changes: Any) -> dict[str, Any]:
    """The first note as a line of JSON, with a second name for each label."""
    entities = [
        {"id": "T1", "native": "Condition", "label": "problem", "spans": [[7, 11]]},
        {"id": "T2", "native": "Grade", "label": "severity", "spans": [[0, 6]], "text": "Severe"},
    ]
    relations = [{"native": "Has_grade", "type": "has_severity", "head": "T1", "tail": "T2"}]
    base = {"doc_id": "n1", "split": "train", "text": TEXT, "entities": entities, "relations": relations}
    return {**base, **changes}


def words(note: Note) -> dict[str, str]:
    """Entity id -> what the note reads at its spans, fragments joined by a space."""
    return {e.entity_id: " ".join(note.text[s:t] for s, t in e.spans) for e in note.entities}


def links(note: Note) -> set[tuple[str, str]]:
    return {(relation.head, relation.tail) for relation in note.relations}
