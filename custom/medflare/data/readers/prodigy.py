# SPDX-License-Identifier: Apache-2.0
"""Notes annotated with Prodigy: JSON lines of `db-out`, of spans (ner, spans) and of relations (rel.manual).

Rows: `text`; `spans` [{start, end, label}]; `relations` [{head_span, child_span, label}] whose spans are
among `spans`; `answer`, of which only `accept` is read; `meta` may hold patient_id and split. Offsets are
code points, end-exclusive. https://prodi.gy/docs/api-interfaces
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from medflare.data.readers.annotated import checked_note
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import ColumnMap
from medflare.data.readers.text_rows import TextRow, shorten, text_rows
from medflare.data.records import Entity, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig

FIELDS: ColumnMap = {
    "id": ["id", "_task_hash"],
    "text": "text",
    "spans": "spans",
    "relations": "relations",
    "answer": "answer",
    "meta": "meta",
    "patient_id": "patient_id",
    "split": "split",
}

ProdigySpan = tuple[int, int, str]


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or all .jsonl files of `config.root`; rejected and ignored rows are counted."""
    source = SourceRecords()
    answers: Counter[str] = Counter()
    for row in text_rows(config, FIELDS, ("text",), source):
        answer = row.text("answer") or "accept"
        if answer != "accept":
            answers[f"{answer} row" if answer in ("reject", "ignore") else "row of unknown answer"] += 1
            continue
        with source.skipping(row.record):
            meta = row.table.get(row.row, "meta")
            meta = meta if isinstance(meta, dict) else {}
            spans = [_span(item, row.where) for item in row.listed("spans")]
            numbers = {span: f"T{number}" for number, span in enumerate(spans, 1)}
            source.notes.append(
                checked_note(
                    row.record,
                    str(row.table.get(row.row, "text") or ""),
                    row.where,
                    split=row.split or str(meta.get("split") or ""),
                    patient_id=row.text("patient_id") or str(meta.get("patient_id") or ""),
                    entities=[
                        Entity(entity_id=name, label=label, spans=((start, end),))
                        for (start, end, label), name in numbers.items()
                    ],
                    relations=list(_relations(row, numbers)),
                )
            )
    source.left_out = dict(+answers)
    return source


def _span(item: Any, where: str) -> ProdigySpan:
    try:
        return int(item["start"]), int(item["end"]), str(item["label"])
    except (KeyError, TypeError, ValueError):
        detail = f"{where}: expected start, end, label; found {shorten(item)}"
        raise RecordError("malformed entity", detail) from None


def _relations(row: TextRow, numbers: Mapping[ProdigySpan, str]) -> Iterator[Relation]:
    for item in row.listed("relations"):
        try:
            head, tail = (_span(item[end], row.where) for end in ("head_span", "child_span"))
            label = str(item["label"])
        except (KeyError, TypeError):
            detail = f"{row.where}: expected head_span, child_span, label; found {shorten(item)}"
            raise RecordError("malformed relation", detail) from None
        if head not in numbers or tail not in numbers:
            raise RecordError("relation without entity", f"{row.where}: {label} links a span without a label")
        yield Relation(label=label, head=numbers[head], tail=numbers[tail])
