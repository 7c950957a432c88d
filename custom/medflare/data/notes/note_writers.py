# SPDX-License-Identifier: Apache-2.0
"""Annotated notes as text: BRAT's standoff format, and a line of the `notes_jsonl` format."""

from __future__ import annotations

import re

from medflare.data.records import Note

_LINE_END = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")


def standoff(note: Note) -> str:
    """Return the annotation of a note: T lines, then R lines; line ends inside a surface become spaces."""
    lines = []
    for entity in note.entities:
        spans = ";".join(f"{start} {end}" for start, end in entity.spans)
        words = _LINE_END.sub(" ", " ".join(note.text[start:end] for start, end in entity.spans))
        lines.append(f"{entity.entity_id}\t{entity.label} {spans}\t{words}")
    for number, relation in enumerate(note.relations, start=1):
        lines.append(f"R{number}\t{relation.label} Arg1:{relation.head} Arg2:{relation.tail}")
    return "".join(f"{line}\n" for line in lines)


def notes_row(note: Note) -> dict[str, object]:
    """Return one line of the `notes_jsonl` format."""
    return {
        "doc_id": note.note_id,
        "patient_id": note.patient_id,
        "text": note.text,
        **({"split": note.split} if note.split else {}),
        "entities": [
            {"id": e.entity_id, "label": e.label, "spans": [list(span) for span in e.spans]}
            for e in note.entities
        ],
        "relations": [{"type": r.label, "head": r.head, "tail": r.tail} for r in note.relations],
    }
