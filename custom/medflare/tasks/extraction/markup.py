# SPDX-License-Identifier: Apache-2.0
"""The two output formats: `<span>` marks around the words of the text, and a JSON list.

Writing makes a training target from gold spans; parsed turns whatever a model wrote into marked words and
counts everything that is wrong with it. Nothing a model writes can raise an error here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from medflare.data.notes.word_offsets import WORD, WordOffsets, WordRange
from medflare.tasks.extraction.alignment import align, normalise

TAG = re.compile(r"<(/?)span\b([^<>]*)>", re.IGNORECASE)
CLASS = re.compile(r"\bclass\s*=\s*[\"']?\s*([\w-]+)", re.IGNORECASE)
CUT_TAG = re.compile(r"<(?:/?span\b[^<>]*|/?sp?a?|/)\Z", re.IGNORECASE)
LIST = re.compile(r"\[\s*[{\]]")
UNCLOSED, STRAY, UNKNOWN = "unclosed span", "stray end", "unknown type"
NOT_JSON, TRUNCATED = "not json", "truncated"
MISPLACED = "modifier of another head"
ALTERED, ABSENT, EMPTY = "altered words", "words not in text", "empty span"
MALFORMED = frozenset({UNCLOSED, STRAY, UNKNOWN, NOT_JSON, TRUNCATED})
"""Faults that make an output a parse failure; the others concern single spans of a readable output."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A type on a non-empty range of the source's words."""

    label: str
    words: WordRange


@dataclass(slots=True)
class ParsedOutput:
    """The marks of one output, and how often each fault occurred."""

    marks: list[Mark] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        """True if the output as a whole is malformed."""
        return bool(MALFORMED & set(self.faults))


def keep_outermost(marks: Iterable[Mark]) -> list[Mark]:
    """Return the marks without those that overlap an earlier or longer one: one flat layer."""
    kept: list[Mark] = []
    for mark in sorted(marks, key=lambda m: (m.words[0], -m.words[1])):
        if not kept or mark.words[0] >= kept[-1].words[1]:
            kept.append(mark)
    return kept


def drop_crossing(marks: Iterable[Mark]) -> list[Mark]:
    """Return the marks without those that cross the border of an earlier one; proper nesting stays."""
    kept: list[Mark] = []
    for mark in sorted(set(marks), key=lambda m: (m.words[0], -m.words[1], m.label)):
        if not any(a.words[0] < mark.words[0] < a.words[1] < mark.words[1] for a in kept):
            kept.append(mark)
    return kept


# ---- marks around words ----------------------------------------------------------------------------------


def write_spans(source: WordOffsets, marks: Sequence[Mark]) -> str:
    """Return the source's words with `<span class="type">` around marked ones; marks must not cross."""
    before: dict[int, list[str]] = {}
    after: Counter[int] = Counter()
    for mark in sorted(marks, key=lambda m: (m.words[0], -m.words[1])):
        before.setdefault(mark.words[0], []).append(f'<span class="{mark.label}">')
        after[mark.words[1] - 1] += 1
    return " ".join(
        "".join(before.get(i, ())) + word + "</span>" * after[i] for i, word in enumerate(source.words)
    )


def read_spans(output: str, source: WordOffsets, types: Sequence[str]) -> ParsedOutput:
    """Parse `<span class="type">` marks, nested ones included, and align them to the source.

    An unknown type becomes plain text; a span that is never closed ends with the output; tags are matched
    without regard to case, other attributes and kind of quote. "< span" is no tag but words of the source.
    """
    parsed = ParsedOutput()
    known = {normalise(name): name for name in types}
    words: list[str] = []
    open_spans: list[tuple[str | None, int]] = []
    spans: list[tuple[str, int, int]] = []
    position = 0

    def close() -> None:
        label, start = open_spans.pop()
        if label is not None:
            spans.append((label, start, len(words)))

    output = CUT_TAG.sub("", output)
    for tag in TAG.finditer(output):
        words += WORD.findall(output[position : tag.start()])
        position = tag.end()
        if not tag.group(1):
            named = CLASS.search(tag.group(2))
            label = known.get(normalise(named.group(1))) if named else None
            parsed.faults[UNKNOWN] += label is None
            open_spans.append((label, len(words)))
        elif open_spans:
            close()
        else:
            parsed.faults[STRAY] += 1
    words += WORD.findall(output[position:])
    parsed.faults[UNCLOSED] += len(open_spans)
    while open_spans:
        close()
    places = align(source.words, words)
    for label, start, end in spans:
        _add_mark(parsed, label, places[start:end])
    return _sorted(parsed)


def _add_mark(parsed: ParsedOutput, label: str, places: Sequence[int | None]) -> None:
    """Add the range of source words that a span's words are aligned to, or count why there is none."""
    present = [place for place in places if place is not None]
    if not places:
        parsed.faults[EMPTY] += 1
    elif not present:
        parsed.faults[ABSENT] += 1
    else:
        altered = len(present) < len(places) or present[-1] - present[0] >= len(present)
        parsed.faults[ALTERED] += altered
        parsed.marks.append(Mark(label, (present[0], present[-1] + 1)))


def _sorted(parsed: ParsedOutput) -> ParsedOutput:
    parsed.marks = sorted(set(parsed.marks), key=lambda m: (m.words[0], -m.words[1], m.label))
    parsed.faults = Counter({name: count for name, count in parsed.faults.items() if count})
    return parsed


# ---- a JSON list -----------------------------------------------------------------------------------------


def write_json(source: WordOffsets, marks: Sequence[Mark]) -> str:
    """Return `[{"entity": type, "text": words}]` in the order of the text."""
    rows = [
        {"entity": mark.label, "text": " ".join(source.words[mark.words[0] : mark.words[1]])}
        for mark in sorted(marks, key=lambda m: (m.words[0], -m.words[1]))
    ]
    return json.dumps(rows, ensure_ascii=False)


def read_json(
    output: str, source: WordOffsets, types: Sequence[str], head: Mark | None = None
) -> ParsedOutput:
    """Parse a JSON list and find its rows in the source; each occurrence of a row's words is taken once.

    Without a head a row takes the first occurrence after the previous row's, and one that comes too late for
    this order the first that is not taken. With a head it takes the free occurrence nearest to the head:
    rows do not say which "right" of several is meant, and modifiers stand near what they modify.
    """
    parsed = ParsedOutput()
    rows = _rows(output, parsed)
    known = {normalise(name): name for name in types}
    words = [normalise(word) for word in source.words]
    taken: set[Mark] = set()
    cursor = 0
    for row in rows:
        label = known.get(normalise(_text(row.get("entity")).strip()))
        wanted = [normalise(word) for word in WORD.findall(_text(row.get("text")))]
        if label is None:
            parsed.faults[UNKNOWN] += 1
        elif not wanted:
            parsed.faults[EMPTY] += 1
        else:
            free = [m for m in _occurrences(words, wanted, label) if m not in taken]
            if not free:
                parsed.faults[ABSENT] += 1
                continue
            if head is None:
                mark = next((m for m in free if m.words[0] >= cursor), free[0])
            else:
                mark = min(free, key=lambda m: _distance(m.words, head.words))
            taken.add(mark)
            parsed.marks.append(mark)
            cursor = mark.words[1]
    return _sorted(parsed)


def _text(value: object) -> str:
    """Return a field as text: models leave out the quotes of numbers; other types count as empty."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _distance(first: WordRange, second: WordRange) -> int:
    """Return the number of words between two ranges; 0 where they touch or overlap."""
    return max(first[0] - second[1], second[0] - first[1], 0)


def _rows(output: str, parsed: ParsedOutput) -> list[dict[str, object]]:
    """Return the rows of the first list of objects in an output; of a truncated list the complete rows."""
    start = LIST.search(output)
    rows = None
    if start is not None:
        with contextlib.suppress(ValueError, RecursionError):
            rows = json.JSONDecoder().raw_decode(output, start.start())[0]
    if not isinstance(rows, list):
        parsed.faults[NOT_JSON] += 1
        rows = []
        for piece in re.finditer(r"\{[^{}]*\}", output):
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(piece.group()))
    wrong = sum(not isinstance(row, dict) for row in rows)
    if wrong:
        parsed.faults[NOT_JSON] += wrong
    return [row for row in rows if isinstance(row, dict)]


def _occurrences(words: list[str], wanted: list[str], label: str) -> list[Mark]:
    """Return every place of the wanted words in the source, from left to right."""
    size = len(wanted)
    starts = (i for i in range(len(words) - size + 1) if words[i : i + size] == wanted)
    return [Mark(label, (start, start + size)) for start in starts]
