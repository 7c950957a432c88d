# SPDX-License-Identifier: Apache-2.0
"""CoNLL: one token a line with its tag, an empty line after a sentence, -DOCSTART- before a document. NER.

Tags are B-type, I-type, O; IOB1 (B only between neighbours of one type) and BIOES or BILOU are read by the
rule of conlleval: a mention begins at B, S or U, and at I or E whose predecessor does not lead to it. The
text is put together again with one space between tokens and one line a sentence; offsets are those of this
text. No relations are in such a file, so the annotation covers "ner" alone. The split is the name of a folder
or of the file. https://www.clips.uantwerpen.be/conll2003/ner/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.readers.annotated import annotation_files, check_text, read_text, split_of
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Entity, Note, RecordError
from medflare.data.settings.cohort import CohortConfig

SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".tsv", ".txt")
DEFAULTS = {"token": 1, "tag": -1}

_BEGINS, _GOES_ON, _ENDS = "BSU", "IEML", "ESUL"

TokenRow = tuple[int, str, str]
"""Line number, token, tag."""


@dataclass(slots=True)
class Document:
    """The rows of one document, sentence by sentence, and the fault of its first unreadable line."""

    name: str
    sentences: list[list[TokenRow]] = field(default_factory=lambda: [[]])
    fault: RecordError | None = None


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file` or every file of SUFFIXES below `config.root`.

    `columns: {token: 1, tag: -1}` are the numbers of the columns, from 1; negative ones count from the end.
    """
    columns = column_numbers(config.columns)
    source = SourceRecords()
    for path, record in _files(config):
        with source.skipping(record):
            documents = list(_documents(read_text(path).removeprefix("\ufeff"), record, columns))
            if not documents:
                raise RecordError("empty note", f"{record}, offset 0: the file has no token")
            for document in documents:
                with source.skipping(document.name):
                    source.notes.append(_note(document, record))
                    source.places[document.name] = f"{record} ({document.name}, in its rebuilt text)"
    return source


def column_numbers(columns: Mapping[str, Any]) -> dict[str, int]:
    """Return our field -> index into a row.

    Raises:
        DataError: a field or number that cannot be one.
    """
    unknown = sorted(set(columns) - set(DEFAULTS))
    if unknown:
        raise DataError(f"'columns: {unknown[0]}' is no field of conll; it has {', '.join(DEFAULTS)}.")
    numbers = {}
    for name, default in DEFAULTS.items():
        value = str(columns.get(name, default))
        if not value.removeprefix("-").isdigit() or int(value) == 0:
            expected = "the column's number, counted from 1, or -1 for the last"
            raise DataError(f"'columns: {name}' is {value!r}; expected {expected}.")
        numbers[name] = int(value) - (int(value) > 0)
    return numbers


def _files(config: CohortConfig) -> Iterator[tuple[Path, str]]:
    """Yield every file with the name that messages and notes give it."""
    root = config.root / config.file if config.file else config.root
    if root.is_file():
        yield root, root.name
        return
    for path in annotation_files(root, *SUFFIXES):
        yield path, path.relative_to(root).as_posix()


def _documents(text: str, record: str, columns: Mapping[str, int]) -> Iterator[Document]:
    """Yield the documents of a file that have a token or a fault."""
    count, document = 0, Document(record)
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        row = line.split("\t") if "\t" in line else line.split()
        if row and row[0] == "-DOCSTART-":
            if any(document.sentences) or document.fault:
                yield document
            count += 1
            document = Document(f"{record}#{count}")
        elif not line.strip():
            document.sentences.append([])
        elif document.fault is None:
            try:
                token, tag = (row[columns[name]].strip() for name in ("token", "tag"))
            except IndexError:
                token = tag = ""
            if not token or not tag or len(row) < 2:
                detail = f"{record} line {number}: expected a token and a tag, found {line[:40]!r}"
                document.fault = RecordError("malformed line", detail)
            document.sentences[-1].append((number, token, tag))
    if any(document.sentences) or document.fault:
        yield document


def _note(document: Document, record: str) -> Note:
    if document.fault is not None:
        raise document.fault
    lines: list[str] = []
    entities: list[Entity] = []
    start = 0
    for rows in filter(None, document.sentences):
        line = " ".join(token for _, token, _ in rows)
        for label, first, last in mentions(rows, record):
            span = _span(rows, first, last, start)
            entities.append(Entity(entity_id=f"T{len(entities) + 1}", label=label, spans=(span,)))
        lines.append(line)
        start += len(line) + 1
    text = "\n".join(lines)
    check_text(text, record)
    parts = Path(record).parts
    return Note(
        note_id=document.name,
        text=text,
        split=split_of([*parts[:-1], Path(record).stem]),
        entities=tuple(entities),
        tasks=("ner",),
    )


def _span(rows: Sequence[TokenRow], first: int, last: int, start: int) -> tuple[int, int]:
    """Return the offsets of tokens `first` to `last`, inclusive, of a sentence that begins at `start`."""
    begin = start + sum(len(token) + 1 for _, token, _ in rows[:first])
    return begin, begin + sum(len(token) + 1 for _, token, _ in rows[first : last + 1]) - 1


def mentions(rows: Sequence[TokenRow], where: str) -> list[tuple[str, int, int]]:
    """Return (type, first token, last token) of every mention of a sentence, in any of the tag schemes."""
    spans: list[tuple[str, int, int]] = []
    last_mark, last_label = "O", ""
    for index, (number, _, tag) in enumerate(rows):
        mark, _, label = tag.partition("-")
        if tag != "O" and not (label and mark in tuple(_BEGINS + _GOES_ON)):
            detail = (
                f"{where} line {number}: tag '{tag}' is none of O, B-type, I-type (also E-, S-, L-, U-, M-)"
            )
            raise RecordError("unknown tag", detail)
        leads_on = last_mark != "O" and last_mark not in _ENDS and last_label == label
        if mark in tuple(_BEGINS) or (mark != "O" and not leads_on):
            spans.append((label, index, index))
        elif mark != "O":
            spans[-1] = (label, spans[-1][1], index)
        last_mark, last_label = mark, label
    return spans
