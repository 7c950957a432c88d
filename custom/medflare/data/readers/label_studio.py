# SPDX-License-Identifier: Apache-2.0
"""Notes annotated with Label Studio: its JSON or JSON-MIN export, one list of tasks a file.

A task has `data` (the text, by default under `text`) and `annotations`, of which the first that was not
cancelled is read. A result of type `labels` is an entity of its first label, one of type `relation` a link:
`right` and `bi` from `from_id` to `to_id`, `left` the other way. A task of JSON-MIN has the text and lists of
labelled spans beside each other and no links. Offsets are code points, or UTF-16 units as browsers count
them, whichever fits the text that the export repeats. `columns` names the keys of `data` (text, id,
patient_id, split). https://labelstud.io/guide/export
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medflare.core.errors import DataError
from medflare.data.readers.annotated import check_surface, checked_note, code_point_offsets
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import find_file
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig

KEYS = {"text": "text", "id": "id", "patient_id": "patient_id", "split": "split"}


class _Part(BaseModel):
    """A part of the export; Label Studio adds keys from version to version, so others are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Value(_Part):
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    labels: list[str] = Field(min_length=1)
    text: str | None = None


class _Result(_Part):
    type: str
    id: str = ""
    value: dict[str, Any] = Field(default_factory=dict)
    from_id: str = ""
    to_id: str = ""
    direction: str = "right"
    labels: list[str] = Field(default_factory=list)


class _Annotation(_Part):
    result: list[_Result]
    was_cancelled: bool = False


class _Task(_Part):
    """A task; JSON-MIN's is brought into this form by `_whole_task`."""

    id: int | str = ""
    data: dict[str, Any]
    annotations: list[_Annotation] = Field(default_factory=list)


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or all .json files of `config.root`.

    Raises:
        DataError: there is no such file, it is no list of tasks, or `columns` names an unknown field.
    """
    if unknown := sorted(set(config.columns) - set(KEYS)):
        raise DataError(f"{config.root}: 'columns: {unknown[0]}' is no field; there are {', '.join(KEYS)}.")
    keys = {name: str(config.columns.get(name, key)) for name, key in KEYS.items()}
    source, left_out = SourceRecords(), Counter[str]()
    for path in _files(config):
        for number, item in enumerate(_tasks(path), 1):
            where = f"{path.name} task {number}"
            with source.skipping(where):
                note = _note(item, keys, where, left_out, bool(config.tasks))
                if note.note_id in source.places:
                    raise RecordError("duplicated note", f"{where}: the id of {source.places[note.note_id]}")
                source.places[note.note_id] = where
                source.notes.append(note)
    source.left_out = dict(+left_out)
    return source


def _files(config: CohortConfig) -> list[Path]:
    first = find_file(config.root, ("*.json",), config.file)
    return sorted(config.root.glob("*.json")) if config.root.is_dir() and config.file is None else [first]


def _tasks(path: Path) -> list[Any]:
    try:
        tasks = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}). Export from Label Studio as 'JSON'.") from None
    if not isinstance(tasks, list):
        raise DataError(f"{path}: expected a list of tasks. Export from Label Studio as 'JSON'.")
    return tasks


def _whole_task(item: Any) -> Any:
    """Return a task of JSON-MIN, which has no `data`, in the form of the whole export; others unchanged."""
    if not isinstance(item, dict) or "data" in item or "annotation_id" not in item:
        return item
    spans = [
        (f"{key}-{number}", part)
        for key, parts in item.items()
        if isinstance(parts, list)
        for number, part in enumerate(parts, 1)
        if isinstance(part, dict) and {"start", "end", "labels"} <= set(part)
    ]
    result = [{"id": name, "type": "labels", "value": part} for name, part in spans]
    return {"id": item.get("id", ""), "data": item, "annotations": [{"result": result}]}


def _note(item: Any, keys: dict[str, str], where: str, left_out: Counter[str], annotated: bool) -> Note:
    try:
        task = _Task.model_validate(_whole_task(item))
    except ValidationError as error:
        raise RecordError("malformed task", f"{where}: {error.errors()[0]['msg']}") from None
    text = task.data.get(keys["text"])
    if not isinstance(text, str):
        found = ", ".join(task.data) or "nothing"
        raise RecordError("empty note", f"{where}: no text under data.{keys['text']}; found {found}")
    kept = [annotation for annotation in task.annotations if not annotation.was_cancelled]
    left_out["cancelled annotation"] += len(task.annotations) - len(kept)
    left_out["further annotation of a task"] += max(0, len(kept) - 1)
    if annotated and not kept:
        raise RecordError("text without annotation", f"{where}: nobody annotated it; 'tasks: []' reads texts")
    results = kept[0].result if kept and annotated else []
    entities = _entities([result for result in results if result.type == "labels"], text, where)
    relations = [_relation(result) for result in results if result.type == "relation"]
    for result in results:
        left_out[f"result of type {result.type}"] += result.type not in ("labels", "relation")
        labels = result.value.get("labels")
        left_out["further label of a span"] += max(0, len(labels) - 1) if isinstance(labels, list) else 0
    identity = task.data.get(keys["id"]) or task.id
    return checked_note(
        str(identity or where),
        text,
        where,
        split=str(task.data.get(keys["split"]) or ""),
        patient_id=str(task.data.get(keys["patient_id"]) or ""),
        entities=entities,
        relations=relations,
    )


def _entities(results: list[_Result], text: str, where: str) -> list[Entity]:
    values = []
    for result in results:
        try:
            values.append((result.id, _Value.model_validate(result.value)))
        except ValidationError:
            detail = f"{where}: expected start, end, labels in the value of {result.id or 'a result'}"
            raise RecordError("malformed entity", detail) from None
    plain = [_entity(name, value, (value.start, value.end)) for name, value in values]
    try:
        _check(plain, values, text, where)
        return plain
    except RecordError:
        offsets = code_point_offsets(text)
        if len(offsets) == len(text) + 1 or any(value.end >= len(offsets) for _, value in values):
            raise
        units = [_entity(name, value, (offsets[value.start], offsets[value.end])) for name, value in values]
        _check(units, values, text, where)
        return units


def _entity(name: str, value: _Value, span: tuple[int, int]) -> Entity:
    return Entity(entity_id=name, label=value.labels[0], spans=(span,))


def _check(entities: list[Entity], values: list[tuple[str, _Value]], text: str, where: str) -> None:
    for entity, (name, value) in zip(entities, values, strict=True):
        if value.text is not None:
            check_surface(name, entity.spans, text, value.text.replace("\\n", "\n"), where)


def _relation(result: _Result) -> Relation:
    """Return a link; without choices of a name, as Label Studio draws them by default, it is a `relation`."""
    head, tail = result.from_id, result.to_id
    if result.direction == "left":
        head, tail = tail, head
    return Relation(label=next(iter(result.labels), result.type), head=head, tail=tail)
