# SPDX-License-Identifier: Apache-2.0
"""BRAT standoff: a folder of .txt and .ann pairs, below it sub-folders as deep as they come.

Read are T lines (also discontinuous: `T1<tab>problem 0 5;9 12<tab>fever and`) and R lines with two arguments
of any name, which may be events (their trigger is meant). Attributes (A, M), events (E), normalisations (N),
remarks (#) and equivalences (*) are counted and left out: an attribute such as Negation has no words of its
own that could be marked. Offsets are code points, end-exclusive, of the file as it is (CRLF counts as two)
or, where they do not fit it, of the file with LF.
A sub-folder named train, dev, val or test gives the split. https://brat.nlplab.org/standoff.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from medflare.data.readers.annotated import (
    Span,
    annotation_files,
    check_ends,
    check_ids,
    check_spans,
    check_surface,
    check_text,
    read_text,
    split_of,
)
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig

LEFT_OUT = {
    "A": "attribute",
    "M": "attribute",
    "E": "event",
    "N": "normalisation",
    "#": "remark",
    "*": "group",
}

_LINE = re.compile(r"(?:[TREAMN#]\d+|#|\*)\s")
_RELATION = re.compile(r"(\S+)\s+[^\s:]+:([TE]\d+)\s+[^\s:]+:([TE]\d+)\s*")
_ENTITY = re.compile(r"(\S+) (\d+ \d+(?:;\d+ \d+)*)")


@dataclass(slots=True, kw_only=True)
class Standoff:
    """The lines of one .ann file by what they annotate.

    Attributes:
        entities: (entity, its text as the file has it, place); relations: (id, relation, place).
        triggers: event -> the entity that is its trigger.
    """

    entities: list[tuple[Entity, str, str]] = field(default_factory=list)
    relations: list[tuple[str, Relation, str]] = field(default_factory=list)
    triggers: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def read(config: CohortConfig) -> SourceRecords:
    """Read all pairs below `config.root`; without tasks (input of an extraction) the .txt files alone."""
    files = annotation_files(config.root, ".txt", ".ann")
    source = SourceRecords()
    left_out: Counter[str] = Counter()
    texts = {path.with_suffix("") for path in files if path.suffix == ".txt"}
    for stem in sorted({path.with_suffix("") for path in files}):
        record = stem.relative_to(config.root).as_posix()
        with source.skipping(record):
            if stem not in texts:
                detail = f"{record}.ann: there is no {stem.name}.txt beside it"
                raise RecordError("annotation without text", detail)
            note, lines = _note(stem, record, bool(config.tasks))
            source.notes.append(note)
            source.places[record] = f"{record}.ann"
            left_out += lines
    source.left_out = dict(+left_out)
    return source


def _note(stem: Path, record: str, annotated: bool) -> tuple[Note, Counter[str]]:
    """Return a note, and the lines left out of its annotation."""
    text = read_text(Path(f"{stem}.txt"))
    check_text(text, f"{record}.txt")
    split = split_of(Path(record).parts[:-1])
    if not annotated:
        return Note(note_id=record, text=text.removeprefix("\ufeff"), split=split), Counter()
    path = Path(f"{stem}.ann")
    if not path.is_file():
        detail = f"{record}.txt: there is no {stem.name}.ann beside it; 'tasks: []' reads texts alone"
        raise RecordError("text without annotation", detail)
    standoff = parse_standoff(read_text(path).removeprefix("\ufeff"), f"{record}.ann")
    text = _text_that_fits(standoff, text)
    entities = tuple(entity for entity, _, _ in standoff.entities)
    relations = tuple(relation for _, relation, _ in standoff.relations)
    return Note(
        note_id=record, text=text, split=split, entities=entities, relations=relations
    ), standoff.left_out


def _text_that_fits(standoff: Standoff, text: str) -> str:
    """Return `text` as the annotation's offsets count it.

    Programs disagree on a byte order mark and on line ends that were changed after annotation (a checkout of
    git on Windows). First without the mark; then with it; then with one character for each line end.

    Raises:
        RecordError: none fits; it names the first annotation that does not fit the text without the mark.
    """
    bare = text.removeprefix("\ufeff")
    try:
        _check(standoff, bare)
    except RecordError:
        unix, unix_bare = (written.replace("\r\n", "\n") for written in (text, bare))
        for other in dict.fromkeys((text, unix_bare, unix)):
            if other != bare and _fits(standoff, other):
                return other
        raise
    return bare


def _fits(standoff: Standoff, text: str) -> bool:
    try:
        _check(standoff, text)
    except RecordError:
        return False
    return True


def parse_standoff(annotation: str, where: str) -> Standoff:
    """Return the lines of an .ann file.

    Raises:
        RecordError: names the first line that is not BRAT, or whose id was used before.
    """
    standoff = Standoff()
    for number, line in _lines(annotation, where):
        place = f"{where} line {number}"
        letter, body = line[0], line.split("\t")
        if letter == "T":
            standoff.entities.append((*_entity(body, place), place))
        elif letter == "R":
            standoff.relations.append((body[0], _relation(body, place), place))
        else:
            standoff.left_out[LEFT_OUT[letter]] += 1
        if letter == "E" and len(body) > 1 and body[1].strip():
            standoff.triggers[body[0]] = body[1].split()[0].rpartition(":")[2]
    check_ids([entity.entity_id for entity, _, _ in standoff.entities], where)
    check_ids([name for name, _, _ in standoff.relations], where)
    for index, (name, relation, place) in enumerate(standoff.relations):
        head, tail = (standoff.triggers.get(end, end) for end in (relation.head, relation.tail))
        standoff.relations[index] = (name, Relation(label=relation.label, head=head, tail=tail), place)
    return standoff


def _lines(annotation: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines that are not empty; one that opens no annotation continues the text of a T line.

    Some exports keep the line end inside a marked span, where BRAT itself writes a space.
    """
    pending: tuple[int, str] | None = None
    for number, line in enumerate(annotation.replace("\r\n", "\n").split("\n"), 1):
        if pending is not None and pending[1][0] == "T" and line and not _LINE.match(line):
            pending = (pending[0], f"{pending[1]}\n{line}")
            continue
        if pending is not None and line.strip():
            yield pending
            pending = None
        if line.strip():
            if not _LINE.match(line):
                raise RecordError(
                    "malformed line", f"{where} line {number}: '{line[:40]}' is no BRAT annotation"
                )
            pending = (number, line)
    if pending is not None:
        yield pending


def _entity(body: list[str], where: str) -> tuple[Entity, str]:
    marked = _ENTITY.fullmatch(body[1].strip()) if len(body) > 2 else None
    if marked is None:
        detail = f"{where}: expected 'T1<tab>type start end<tab>text', found {' '.join(body)[:60]!r}"
        raise RecordError("malformed entity", detail)
    spans: tuple[Span, ...] = tuple(
        (int(start), int(end)) for start, end in (part.split() for part in marked[2].split(";"))
    )
    return Entity(entity_id=body[0], label=marked[1], spans=spans), "\t".join(body[2:])


def _relation(body: list[str], where: str) -> Relation:
    linked = _RELATION.fullmatch(body[1]) if len(body) > 1 else None
    if linked is None:
        detail = f"{where}: expected 'R1<tab>type Arg1:T1 Arg2:T2', found {' '.join(body)[:60]!r}"
        raise RecordError("malformed relation", detail)
    return Relation(label=linked[1], head=linked[2], tail=linked[3])


def _check(standoff: Standoff, text: str) -> None:
    """Raise RecordError for the first annotation that does not fit `text`."""
    for entity, written, place in standoff.entities:
        check_spans(entity.entity_id, entity.spans, len(text), place)
        check_surface(entity.entity_id, entity.spans, text, written, place)
    known = {entity.entity_id for entity, _, _ in standoff.entities}
    for _, relation, place in standoff.relations:
        check_ends(relation, known, place)
