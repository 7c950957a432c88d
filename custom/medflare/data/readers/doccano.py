# SPDX-License-Identifier: Apache-2.0
"""Notes annotated with doccano: its JSON lines export, of spans alone or of spans and relations.

Rows: `text`; `label` (or `labels`) as [[start, end, name]], or `entities` [{id, label, start_offset,
end_offset}] with `relations` [{from_id, to_id, type}]. Offsets are code points, end-exclusive. Further
columns may hold `patient_id` and `split`. https://doccano.github.io/doccano/
"""

from __future__ import annotations

from collections.abc import Iterator

from medflare.data.readers.annotated import checked_note
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import ColumnMap
from medflare.data.readers.text_rows import TextRow, shorten, text_rows
from medflare.data.records import Entity, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig

FIELDS: ColumnMap = {
    "id": "id",
    "text": ["text", "data"],
    "patient_id": "patient_id",
    "split": "split",
    "spans": ["label", "labels"],
    "entities": "entities",
    "relations": "relations",
}


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or all .jsonl files of `config.root`."""
    source = SourceRecords()
    for row in text_rows(config, FIELDS, ("text",), source):
        with source.skipping(row.record):
            source.notes.append(
                checked_note(
                    row.record,
                    str(row.table.get(row.row, "text") or ""),
                    row.where,
                    split=row.split,
                    patient_id=row.text("patient_id"),
                    entities=list(_entities(row)),
                    relations=list(_relations(row)),
                )
            )
    return source


def _entities(row: TextRow) -> Iterator[Entity]:
    for item in row.listed("entities"):
        try:
            span = (int(item["start_offset"]), int(item["end_offset"]))
            yield Entity(entity_id=f"T{int(item['id'])}", label=str(item["label"]), spans=(span,))
        except (KeyError, TypeError, ValueError):
            detail = f"{row.where}: expected id, label, start_offset, end_offset; found {shorten(item)}"
            raise RecordError("malformed entity", detail) from None
    for number, item in enumerate(row.listed("spans"), 1):
        try:
            start, end, label = item
            yield Entity(entity_id=f"S{number}", label=str(label), spans=((int(start), int(end)),))
        except (TypeError, ValueError):
            detail = f"{row.where}: expected [start, end, label]; found {shorten(item)}"
            raise RecordError("malformed entity", detail) from None


def _relations(row: TextRow) -> Iterator[Relation]:
    for item in row.listed("relations"):
        try:
            ends = (f"T{int(item['from_id'])}", f"T{int(item['to_id'])}")
            yield Relation(label=str(item["type"]), head=ends[0], tail=ends[1])
        except (KeyError, TypeError, ValueError):
            detail = f"{row.where}: expected from_id, to_id, type; found {shorten(item)}"
            raise RecordError("malformed relation", detail) from None
