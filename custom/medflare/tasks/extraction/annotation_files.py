# SPDX-License-Identifier: Apache-2.0
"""Writes predictions as files that annotation tools open and medflare's readers read again.

BRAT (one .txt and one .ann of each note), UIMA CAS (one .xmi of each), one notes.jsonl, or one FHIR file.
Offsets are code points of the note's file as it is: a line end of two characters counts as two, a byte order
mark as one. about.json beside the files says that they are drafts, and of which model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from medflare.core.origin import MARKS, Origin
from medflare.data.notes.cas_writer import xmi
from medflare.data.notes.note_writers import notes_row, standoff
from medflare.data.readers.annotated import check_text, read_text
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.evaluation.extraction_predictions import EntityMention, Link
from medflare.tasks.extraction.predictor import NotePrediction, Predictor
from medflare.tasks.fhir import note_resources, write_ndjson

RELATION = "hasAttr"
"""Relation of a head and its modifier, as in the published annotation."""

LINES, FHIR, ABOUT = "notes.jsonl", "extracted.ndjson", "about.json"
SUFFIXES = {"brat": ".ann", "xmi": ".xmi"}
"""Format -> ending of the file that it has of each note."""
FORMATS = (*SUFFIXES, "jsonl", "fhir")


def read_note(path: Path, name: str) -> Note:
    """Return an unannotated note.

    Raises:
        RecordError: the file cannot be read, is no text, or says nothing.
    """
    text = read_text(path)
    if "\0" in text:
        detail = f"{path.name}, offset {text.index(chr(0))}: is no plain text; save the note as UTF-8 text"
        raise RecordError("not a text", detail)
    check_text(text, path.name)
    return Note(note_id=name, text=text, split="", tasks=())


def annotate(predictor: Predictor, notes: Iterable[Note]) -> list[tuple[Note, NotePrediction]]:
    """Return each note with the predicted heads and modifiers, and the prediction itself."""
    given = list(notes)
    pairs = zip(given, predictor.extract(given), strict=True)
    return [(annotated(note, prediction), prediction) for note, prediction in pairs]


def annotated(note: Note, prediction: NotePrediction) -> Note:
    """Return `note` with the entities and modifiers of `prediction`, each once, in the order of the text."""
    links = list(dict.fromkeys(prediction.links_end_to_end or ()))
    mentions = {*prediction.entities, *(end for link in links for end in (link.head, link.modifier))}
    order = sorted(mentions, key=lambda m: (m.spans[0][0], -m.spans[-1][1], m.label, m.spans))
    names = {mention: f"T{number}" for number, mention in enumerate(order, start=1)}
    return replace(
        note,
        entities=tuple(Entity(entity_id=names[m], label=m.label, spans=m.spans) for m in order),
        relations=tuple(_relations(links, names)),
    )


def _relations(links: Iterable[Link], names: dict[EntityMention, str]) -> list[Relation]:
    ends = sorted((int(names[link.head][1:]), int(names[link.modifier][1:])) for link in links)
    return [Relation(label=RELATION, head=f"T{head}", tail=f"T{tail}") for head, tail in ends]


def files_of(names: Iterable[str], format: str) -> list[str]:
    """Return the names of the files that hold the annotation of some notes."""
    whole = {"jsonl": LINES, "fhir": FHIR}
    return [whole[format]] if format in whole else [f"{name}{SUFFIXES[format]}" for name in names]


def write_brat(folder: Path, note: Note, source: Path | None) -> list[Path]:
    """Write `<name>.ann`, and beside it the note's file byte by byte, unless it is that file.

    Args:
        source: the note's file; None for a note of a table or database, whose text is written.
    """
    target = folder / f"{note.note_id}.txt"
    annotation = folder / f"{note.note_id}.ann"
    target.parent.mkdir(parents=True, exist_ok=True)
    if source is None:
        _write(target, note.text.encode())
    elif not (target.exists() and target.samefile(source)):
        _write(target, source.read_bytes())
    _write(annotation, standoff(note).encode())
    return [target, annotation]


def write_cas(folder: Path, note: Note) -> list[Path]:
    """Write `<name>.xmi`, which holds text and annotation."""
    path = folder / f"{note.note_id}.xmi"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, xmi(note))
    return [path]


def write_observations(folder: Path, notes: Iterable[Note], origin: Origin) -> list[Path]:
    """Write extracted.ndjson: a DocumentReference of each note and preliminary Observations."""
    resources = (resource for note in notes for resource in note_resources(note, origin))
    return [write_ndjson(folder / FHIR, resources)]


def write_about(folder: Path, origin: Origin, ids: Mapping[str, str], replaced: Mapping[str, int]) -> Path:
    """Write what the files of a folder are, and which model made them.

    Args:
        ids: name of a note's file -> the note's id at its source, where they differ.
        replaced: kind -> identifiers that are surrogates in the texts, so that offsets count in these alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {"notice": MARKS, "model": origin.as_json()}
    about |= {name: dict(fact) for name, fact in (("ids", ids), ("identifiers_replaced", replaced)) if fact}
    _write(folder / ABOUT, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    return folder / ABOUT


def write_lines(folder: Path, notes: Iterable[Note]) -> list[Path]:
    """Write notes.jsonl, one line of each note with its text."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps(notes_row(note), ensure_ascii=False) + "\n" for note in notes)
    _write(folder / LINES, rows.encode())
    return [folder / LINES]


def _write(path: Path, content: bytes) -> None:
    """Put a file in its place in one step."""
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(content)
    os.replace(scratch, path)
