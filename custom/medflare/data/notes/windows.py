# SPDX-License-Identifier: Apache-2.0
"""Sentences of a note with their offsets, and windows of them: the texts a language model is shown.

Every sentence is in exactly one window, also one without an entity;
heads are given by offsets, not by their words; links between windows are lost and counted, so
that a score can state its denominator.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from medflare.data.notes.sentences import outside, sentences
from medflare.data.records import Entity, Note, Relation, Span

__all__ = ["NoteWindows", "Window", "sentences", "split_note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive sentences of a note.

    Attributes:
        start, end: offsets into the note; `text` is what stands there.
        entities, relations: those that lie inside as a whole, with the note's own ids and offsets.
    """

    note_id: str
    start: int
    end: int
    text: str
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteWindows:
    """The windows of a note, and what of its annotation fits in none of them.

    Attributes:
        entities_cut: entities that no window holds as a whole, such as fragments in two sentences.
        relations_lost: relations whose ends are not in one window, of `relations_total`.
    """

    windows: tuple[Window, ...]
    entities_cut: int
    relations_lost: int
    relations_total: int


def split_note(
    note: Note,
    sentences_per_window: int = 1,
    max_length: int | None = None,
    length: Callable[[str], int] = len,
    keep: Sequence[Span] | None = None,
) -> NoteWindows:
    """Return the windows of a note: up to so many consecutive sentences, never longer than `max_length`.

    Args:
        length: measures a text in the units of `max_length`, for instance tokens of a backbone; a longer
            text must not measure less. A sentence that is too long is cut between words outside entities,
            if need be inside one, and a word that is too long between its characters.
        keep: spans inside which no sentence ends; default the annotated ones. Tests give none, so that the
            annotation tells a model nothing.

    Raises:
        ValueError: sentences_per_window or max_length is below 1.
    """
    if sentences_per_window < 1 or (max_length is not None and max_length < 1):
        given = f"sentences_per_window {sentences_per_window}, max_length {max_length}"
        raise ValueError(f"{given}: both must be 1 or more.")
    annotated = [span for entity in note.entities for span in entity.spans]
    kept = sorted(annotated if keep is None else keep)
    units = sentences(note.text, kept)
    if max_length is not None:
        units = [piece for span in units for piece in _pieces(note.text, span, kept, max_length, length)]
    grouped: list[list[Span]] = []
    for span in units:
        if grouped and len(grouped[-1]) < sentences_per_window:
            joined = note.text[grouped[-1][0][0] : span[1]]
            if max_length is None or length(joined) <= max_length:
                grouped[-1].append(span)
                continue
        grouped.append([span])
    return _windowed(note, [(group[0][0], group[-1][1]) for group in grouped])


def _pieces(
    text: str, span: Span, kept: Sequence[Span], limit: int, length: Callable[[str], int]
) -> list[Span]:
    """Return a sentence as pieces that are no longer than `limit`."""
    start, end = span
    words = [start + match.end() for match in re.finditer(r"\s+", text[start:end])]
    between = outside(words, kept)
    pieces = []
    while length(text[start:end].rstrip()) > limit:
        for borders in (between, words, list(range(start + 1, end))):
            ahead = [border for border in borders if start < border < end]
            fitting = _fitting(text, start, ahead, limit, length)
            if fitting is not None:
                break
        else:
            fitting = start + 1  # a single character is the least that can be shown
        pieces.append((start, start + len(text[start:fitting].rstrip())))
        start = fitting
        if start >= end:
            return pieces
    return [*pieces, (start, end)]


def _fitting(
    text: str, start: int, borders: Sequence[int], limit: int, length: Callable[[str], int]
) -> int | None:
    """Return the last border up to which the text measures at most `limit`, None where none does."""
    low, high = 0, len(borders)
    while low < high:
        middle = (low + high) // 2
        if length(text[start : borders[middle]].rstrip()) <= limit:
            low = middle + 1
        else:
            high = middle
    return borders[low - 1] if low else None


def _windowed(note: Note, spans: Sequence[Span]) -> NoteWindows:
    """Return windows at `spans` with the annotation that lies inside each."""
    starts = [start for start, _ in spans]
    home: dict[str, int] = {}
    for entity in note.entities:
        place = bisect_right(starts, min(start for start, _ in entity.spans)) - 1
        if place >= 0 and max(end for _, end in entity.spans) <= spans[place][1]:
            home[entity.entity_id] = place
    members: list[list[Entity]] = [[] for _ in spans]
    links: list[list[Relation]] = [[] for _ in spans]
    for entity in note.entities:
        if entity.entity_id in home:
            members[home[entity.entity_id]].append(entity)
    for relation in note.relations:
        head, tail = home.get(relation.head), home.get(relation.tail)
        if head is not None and head == tail:
            links[head].append(relation)
    windows = tuple(
        Window(
            note_id=note.note_id,
            start=start,
            end=end,
            text=note.text[start:end],
            entities=tuple(members[index]),
            relations=tuple(links[index]),
        )
        for index, (start, end) in enumerate(spans)
    )
    return NoteWindows(
        windows=windows,
        entities_cut=len(note.entities) - len(home),
        relations_lost=len(note.relations) - sum(map(len, links)),
        relations_total=len(note.relations),
    )
