# SPDX-License-Identifier: Apache-2.0
"""Clinical notes with entities and relations, one JSON object per line; every *.jsonl of the folder is read.

Rows: doc_id, text, split, entities [{id, label, spans [[start, end]], ...}], relations [{type, head, tail}].
Offsets are Python code points into `text` as it is in the file (CRLF counts as two), end-exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from medflare.cohort.readers.common import Source, find_file, read_table, selected
from medflare.cohort.records import Entity, Note, Relation
from medflare.cohort.splits import split_name

if TYPE_CHECKING:
    from medflare.cohort.settings import CohortConfig

SETTINGS = frozenset({"file", "select"})


class NoteError(Exception):
    """A note that contradicts itself; `reason` is a short kind to count by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read(config: CohortConfig) -> Source:
    """Reads `config.file`, or all .jsonl files of `config.root`; a file's name is the split of its rows
    where they have none."""
    first = find_file(config.root, ("*.jsonl", "*.jsonl.gz"), config.file)
    paths = [first]
    if config.root.is_dir() and config.file is None:
        paths = sorted([*config.root.glob("*.jsonl"), *config.root.glob("*.jsonl.gz")])
    source = Source(has_split=True)
    seen: set[str] = set()
    for path in paths:
        found, rows, bad = read_table(path)
        source.skipped += bad
        for index, row in enumerate(selected(path, found, rows, config.select)):
            record = str(row.get("doc_id") or f"{path.name}:{index + 1}")
            try:
                if record in seen:
                    raise NoteError(
                        "duplicated note", "the same doc_id appeared before; the first one is kept"
                    )
                source.notes.append(_note(record, row, path.name.split(".")[0]))
                seen.add(record)
            except NoteError as error:
                source.skip(record, error.reason, str(error))
    if not all(note.split for note in source.notes):
        source.has_split = False
    return source


def _note(record: str, row: Mapping[str, Any], stem: str) -> Note:
    text = row.get("text")
    if not isinstance(text, str) or not text.strip():
        raise NoteError("empty note", "the row has no text")
    split = split_name(str(row.get("split") or stem)) or ""
    if row.get("split") and not split:
        raise NoteError("unknown split", f"split {row['split']!r} is none of train, val, test")
    entities = tuple(_entity(item, len(text)) for item in _listed(row, "entities"))
    known = {entity.entity_id for entity in entities}
    if len(known) < len(entities):
        raise NoteError("duplicated entity", "two entities have the same id")
    relations = tuple(_relation(item, known) for item in _listed(row, "relations"))
    return Note(
        note_id=record,
        text=text,
        patient_id=str(row.get("patient_id") or record),
        split=split,
        entities=entities,
        relations=relations,
    )


def _listed(row: Mapping[str, Any], key: str) -> list[Any]:
    found = row.get(key) or []
    if not isinstance(found, list):
        raise NoteError(f"malformed {key}", f"expected a list, found {type(found).__name__}")
    return found


def _entity(item: Mapping[str, Any], length: int) -> Entity:
    try:
        spans = tuple((int(start), int(end)) for start, end in item["spans"])
        label = str(item.get("label") or item["native"])
        name = str(item["id"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NoteError(
            "malformed entity", f"expected id, label, spans [[start, end]]; found {item!r}"
        ) from None
    for start, end in spans:
        if not 0 <= start < end <= length:
            raise NoteError(
                "offset outside text", f"{name} at {start}:{end}, the text has {length} characters"
            )
    if not spans:
        raise NoteError("malformed entity", f"{name} has no span")
    return Entity(entity_id=name, label=label, spans=spans)


def _relation(item: Mapping[str, Any], known: set[str]) -> Relation:
    try:
        relation = Relation(
            label=str(item.get("type") or item["native"]), head=str(item["head"]), tail=str(item["tail"])
        )
    except (KeyError, TypeError, AttributeError):
        raise NoteError("malformed relation", f"expected type, head, tail; found {item!r}") from None
    missing = {relation.head, relation.tail} - known
    if missing:
        raise NoteError("relation without entity", f"{relation.label} names {', '.join(sorted(missing))}")
    return relation
