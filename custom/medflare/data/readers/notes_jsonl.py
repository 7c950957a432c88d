# SPDX-License-Identifier: Apache-2.0
"""Clinical notes with entities and relations, one JSON object per line; notes without marks also as CSV.

Every *.jsonl of the folder is read, or every *.csv where it has none. Rows: doc_id, text, patient_id, split,
entities [{id, label, native, spans [[start, end]], text, ...}], relations [{type, native, head, tail}]. Of
`label` (`type`) and `native` one is enough; with both, the site's label map speaks of the native name where
it knows it. Offsets are Python code points into `text` as it is in the file (CRLF counts as two),
end-exclusive; an entity's own `text` is optional and must then be what stands there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.data.readers.annotated import check_ends, check_ids, check_spans, check_surface, check_text
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import SourceTable, TableRow, same_names, text_tables
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.label_maps import LabelMap, mapping_of
from medflare.data.splits import split_name

FIELDS = same_names("doc_id", "text", "patient_id", "split", "entities", "relations")


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or the tables of `config.root`.

    A file's name is the split of its rows where they have none.
    """
    mapping = mapping_of(config.label_map)
    source = SourceRecords()
    for path in text_tables(config):
        table = SourceTable(path, FIELDS, config.columns, ())
        source.skipped += table.unreadable
        for index, row in enumerate(table.select(config.select)):
            record = table.text(row, "doc_id") or f"{path.name}:{index + 1}"
            where = f"{path.name} row {index + 1}"
            with source.skipping(record):
                if record in source.places:
                    detail = f"{where}: the same doc_id appeared before; the first one is kept"
                    raise RecordError("duplicated note", detail)
                source.notes.append(_note(record, table, row, mapping, where))
                source.places[record] = where
    return source


def _note(record: str, table: SourceTable, row: TableRow, mapping: LabelMap, where: str) -> Note:
    text, written = table.get(row, "text"), table.text(row, "split")
    if not isinstance(text, str):
        raise RecordError("empty note", f"{where}, offset 0: the row has no text")
    check_text(text, where)
    split = split_name(written or table.path.name.split(".")[0]) or ""
    if written and not split:
        raise RecordError("unknown split", f"{where}: split {written!r} is none of train, val, test")
    entities = tuple(_entity(item, text, mapping, where) for item in _listed(table, row, "entities", where))
    check_ids((entity.entity_id for entity in entities), where)
    known = {entity.entity_id for entity in entities}
    return Note(
        note_id=record,
        text=text,
        patient_id=table.text(row, "patient_id") or record,
        split=split,
        entities=entities,
        relations=tuple(
            _relation(item, known, mapping, where) for item in _listed(table, row, "relations", where)
        ),
    )


def _listed(table: SourceTable, row: TableRow, name: str, where: str) -> list[Any]:
    value = table.get(row, name) or []
    if not isinstance(value, list):
        raise RecordError(f"malformed {name}", f"{where}: expected a list, found {type(value).__name__}")
    return value


def _names(item: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Return the native and the common name of an entity or relation; KeyError where it has neither."""
    native, label = (str(item.get(name) or "") for name in ("native", key))
    if not native and not label:
        raise KeyError(key)
    return native, label or native


def _entity(item: Mapping[str, Any], text: str, mapping: LabelMap, where: str) -> Entity:
    try:
        spans = tuple((int(start), int(end)) for start, end in item["spans"])
        native, label = _names(item, "label")
        name, written = str(item["id"]), item.get("text")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        detail = f"{where}: expected id, label, spans [[start, end]]; found {item!r}"
        raise RecordError("malformed entity", detail) from None
    check_spans(name, spans, len(text), where)
    if isinstance(written, str):
        check_surface(name, spans, text, written, where)
    return Entity(entity_id=name, label=native if native in mapping else label, spans=spans)


def _relation(item: Mapping[str, Any], known: set[str], mapping: LabelMap, where: str) -> Relation:
    try:
        native, label = _names(item, "type")
        if mapping.get(native, native) is None:  # the map leaves links of this name out
            label = native
        relation = Relation(label=label, head=str(item["head"]), tail=str(item["tail"]))
    except (KeyError, TypeError, AttributeError):
        detail = f"{where}: expected type, head, tail; found {item!r}"
        raise RecordError("malformed relation", detail) from None
    check_ends(relation, known, where)
    return relation
