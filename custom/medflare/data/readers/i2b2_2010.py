# SPDX-License-Identifier: Apache-2.0
"""i2b2/VA 2010: .txt with .con (concepts) and .rel (relations); problem, treatment and test.

A concept is `c="his pneumonia" 12:4 12:5||t="problem"`: line from 1, token from 0, both ends included; tokens
are what stands between single spaces. Words in c="..." are in lower case. Relations (TrAP, TeRP, PIP, ...)
keep their own label; all link heads, so none is in the inventory and the annotation covers "ner" alone.
Assertions (.ast) say absent or possible of a whole concept, without a cue that could be marked: they are
counted and left out.
Layouts: txt/, concept/, ast/ and rel/ side by side, or all files in one folder. Uzuner et al., JAMIA 2011.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from medflare.data.readers.annotated import (
    Span,
    annotation_files,
    check_spans,
    check_surface,
    check_text,
    read_text,
    split_of,
)
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig

FOLDERS = {".con": "concept", ".rel": "rel", ".ast": "ast"}

_PLACE = r'c="(.*)" (\d+):(\d+) (\d+):(\d+)'
_CONCEPT = re.compile(rf'{_PLACE}\|\|t="(.+)"')
_RELATION = re.compile(rf'{_PLACE}\|\|r="(.+?)"\|\|{_PLACE}')

Grid = list[list[Span]]
"""Offsets of every token of every line."""

Corners = tuple[int, int, int, int]
"""First line and token, last line and token, as in the files."""

EntityKey = tuple[Corners, str]


def read(config: CohortConfig) -> SourceRecords:
    """Read all notes below `config.root`; without tasks (input of an extraction) the .txt files alone."""
    files = annotation_files(config.root, ".txt", ".con")
    source = SourceRecords()
    left_out: Counter[str] = Counter()
    used = {_beside(path, ".con") for path in files if path.suffix == ".txt"}
    for path in files:
        record = _record(path, config.root)
        with source.skipping(record):
            if path.suffix == ".txt":
                source.notes.append(_note(path, record, bool(config.tasks), left_out))
                source.places[record] = f"{record}.con"
            elif path not in used:
                raise RecordError("annotation without text", f"{record}.con: there is no {path.stem}.txt")
    source.left_out = dict(+left_out)
    return source


def _record(path: Path, root: Path) -> str:
    """Return the note's name: its path without the folder that is named after a kind of file."""
    parts = [part for part in path.relative_to(root).parts[:-1] if part not in ("txt", *FOLDERS.values())]
    return "/".join([*parts, path.stem])


def _beside(text: Path, suffix: str) -> Path:
    """Return the annotation of a text: in the same folder, or in the one of its kind beside txt/."""
    beside = text.with_suffix(suffix)
    return beside if text.parent.name != "txt" else text.parent.parent / FOLDERS[suffix] / beside.name


def _note(path: Path, record: str, annotated: bool, left_out: Counter[str]) -> Note:
    text = read_text(path).removeprefix("\ufeff")
    check_text(text, f"{record}.txt")
    split = split_of(record.split("/")[:-1])
    if not annotated:
        return Note(note_id=record, text=text, split=split)
    if not _beside(path, ".con").is_file():
        detail = f"{record}.txt: there is no {path.stem}.con for it; 'tasks: []' reads texts alone"
        raise RecordError("text without annotation", detail)
    concepts, links, assertions = (_lines(_beside(path, suffix)) for suffix in (".con", ".rel", ".ast"))
    try:
        entities = _entities(concepts, text, single_spaces(text), f"{record}.con")
    except RecordError as error:
        try:  # some releases count tokens between runs of white space
            entities = _entities(concepts, text, runs_of_space(text), f"{record}.con")
        except RecordError:
            raise error from None
    left_out["assertion"] += len(assertions)
    left_out["repeated concept"] += len(concepts) - len(entities)
    return Note(
        note_id=record,
        text=text,
        split=split,
        entities=tuple(entities.values()),
        relations=tuple(_relations(links, entities, f"{record}.rel")),
        tasks=("ner",),
        annotated=("problem", "treatment", "test"),
    )


def single_spaces(text: str) -> Grid:
    """Return tokens as the challenge counts them: two spaces hold an empty one between them."""
    grid, start = [], 0
    for line in text.split("\n"):
        spans, at = [], start
        for token in line.rstrip("\r").split(" "):
            spans.append((at, at + len(token)))
            at += len(token) + 1
        grid.append(spans)
        start += len(line) + 1
    return grid


def runs_of_space(text: str) -> Grid:
    """Return tokens between runs of white space."""
    grid, start = [], 0
    for line in text.split("\n"):
        grid.append([(start + match.start(), start + match.end()) for match in re.finditer(r"\S+", line)])
        start += len(line) + 1
    return grid


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return numbered lines of an annotation file that are not empty; none where there is no such file."""
    if not path.is_file():
        return []
    lines = read_text(path).removeprefix("\ufeff").split("\n")
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def _entities(lines: Sequence[tuple[int, str]], text: str, grid: Grid, where: str) -> dict[EntityKey, Entity]:
    """Return place and type -> entity; a concept that is listed twice is one entity."""
    entities: dict[EntityKey, Entity] = {}
    lowered = _lowered(text)
    for number, line in lines:
        place = f"{where} line {number}"
        match = _CONCEPT.fullmatch(line)
        if match is None:
            detail = f'{place}: expected c="words" 1:0 1:1||t="type", found {line[:60]!r}'
            raise RecordError("malformed entity", detail)
        words, corners, label = match[1], _corners(match, 2), match[6]
        name = f"T{len(entities) + 1}"
        spans = (_span(corners, grid, place),)
        check_spans(name, spans, len(text), place)
        check_surface(name, spans, lowered, _lowered(words), place)
        entities.setdefault((corners, label), Entity(entity_id=name, label=label, spans=spans))
    return entities


def _lowered(text: str) -> str:
    """Return `text` in lower case with every offset as it was; the few letters that would grow stay."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)


def _relations(
    lines: Sequence[tuple[int, str]], entities: dict[EntityKey, Entity], where: str
) -> Iterator[Relation]:
    """Yield the links between concepts; a place marked with two types means the first of them."""
    placed: dict[Corners, str] = {}
    for (corners, _), entity in entities.items():
        placed.setdefault(corners, entity.entity_id)
    for number, line in lines:
        match = _RELATION.fullmatch(line)
        if match is None:
            detail = f'expected c="words" 1:0 1:1||r="type"||c="words" 1:3 1:4, found {line[:60]!r}'
            raise RecordError("malformed relation", f"{where} line {number}: {detail}")
        ends = (_corners(match, 2), _corners(match, 8))
        missing = [end for end in ends if end not in placed]
        if missing:
            l1, t1, l2, t2 = missing[0]
            detail = f"{where} line {number}: {match[6]} names {l1}:{t1} {l2}:{t2}, where no concept is"
            raise RecordError("relation without entity", detail)
        yield Relation(label=match[6], head=placed[ends[0]], tail=placed[ends[1]])


def _corners(match: re.Match[str], group: int) -> Corners:
    first, token, last, final = (int(match[group + i]) for i in range(4))
    return first, token, last, final


def _span(corners: Corners, grid: Grid, where: str) -> Span:
    """Return the offsets of the tokens from the first to the last, which is included."""
    first, token, last, final = corners
    for line, place in ((first, token), (last, final)):
        if not 1 <= line <= len(grid) or place >= len(grid[line - 1]):
            tokens = len(grid[line - 1]) if 1 <= line <= len(grid) else 0
            detail = f"{where}: no token {line}:{place}; of {len(grid)} lines that one has {tokens} tokens"
            raise RecordError("offset outside text", detail)
    return grid[first - 1][token][0], grid[last - 1][final][1]
