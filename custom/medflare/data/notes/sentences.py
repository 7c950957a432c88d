# SPDX-License-Identifier: Apache-2.0
"""Sentence boundaries of clinical text as offsets, from line ends, marks and a chart's abbreviations."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from medflare.data.records import Span

_END = re.compile(r"\r?\n|\r|[.!?]+[\"'”’)\]]*[ \t\u00a0]+")
_LIST_NUMBER = re.compile(r"(?s:.*[:;,])?\s*\(?\d{1,2}")
_OPENING = "\"'“‘(["
_BULLETS = "-*•#"
_REACH = 24  # characters before a mark that are looked at; no abbreviation is longer

_NEVER_LAST = """
    dr drs mr mrs ms prof st vs versus no nos fig figs ref approx ca cf e.g i.e z.b eg ie viz incl resp
    dept gen lt col sgt rev hon
"""
"""Abbreviations that stand before what they belong to, whatever its case."""

_SELDOM_LAST = """
    mg mcg ug gm gms kg ml cc dl cm mm in ft oz lb lbs hr hrs min mins sec wk wks mo mos yr yrs
    tab tabs cap caps gtt gtts supp susp inj amp soln
    p.o po i.v iv i.m im s.c sc s.q sq sub-q subq p.r pr s.l sl n.p.o npo
    q.d qd q.h qh q.h.s qhs h.s hs q.a.m qam q.p.m qpm q.o.d qod q.i.d qid b.i.d bid t.i.d tid p.r.n prn stat
    q.2h q.4h q.6h q.8h q.12h a.c ac p.c pc a.m p.m am pm jr sr m.d md d.o ph.d r.n rn p.a etc al u.s inc co
    corp ltd jan feb mar apr jun jul aug sep sept oct nov dec
"""
"""Abbreviations that may close a sentence: they do before a word such as "The", not before "40" or "PO"."""

_NEVER, _SELDOM = frozenset(_NEVER_LAST.split()), frozenset(_SELDOM_LAST.split())


def sentences(text: str, keep: Iterable[Span] = ()) -> list[Span]:
    """Return the offsets of the sentences of `text` in order, without the white space around them.

    A line end closes a sentence, and so does [.!?] before a word that can open one; abbreviations (Dr., q.d.,
    mg., vs.), initials, list numbers ("1.") and decimals do not. No sentence ends inside a span of `keep`,
    such as the annotated ones; without them the words alone decide.
    """
    kept = sorted(keep)
    borders = [0, *outside(_borders(text), kept), len(text)]
    trimmed = (_trimmed(text, start, end, kept) for start, end in pairwise(borders))
    return [span for span in trimmed if span is not None]


def _borders(text: str) -> list[int]:
    """Return the offsets at which a new sentence begins."""
    borders: list[int] = []
    begin = 0
    for match in _END.finditer(text):
        newline = match.group()[0] in "\r\n"
        if newline or _closes(text, begin, match):
            begin = match.end()
            if begin < len(text):
                borders.append(begin)
    return borders


def _closes(text: str, begin: int, match: re.Match[str]) -> bool:
    """Return whether the mark at `match` ends the sentence that began at `begin`."""
    mark = match.group()[0]
    following = text[match.end() : match.end() + 40].split(maxsplit=1)
    opener = following[0].lstrip(_OPENING) if following else ""
    if opener and not (opener[0].isupper() or opener[0].isdigit() or opener[0] in _BULLETS):
        return False
    if mark == "?" and opener[:1].isdigit():  # "level ? 100": a sign that was lost on the way
        return not text[match.start() - 1 : match.start()].isspace()
    if mark != ".":
        return True
    before = text[max(begin, match.start() - _REACH) : match.start()]
    word = re.split(r"\s", before)[-1].lstrip(_OPENING).lower()
    if word in _NEVER or (len(word) == 1 and word.isalpha()):
        return False
    if word in _SELDOM:
        return opener[:1].isupper() and opener[1:2].islower()
    return _LIST_NUMBER.fullmatch(before) is None


def outside(borders: Iterable[int], kept: Sequence[Span]) -> list[int]:
    """Return the borders that lie inside none of the sorted spans."""
    starts = [start for start, _ in kept]
    reach, furthest = [], 0
    for _, end in kept:
        furthest = max(furthest, end)
        reach.append(furthest)
    free = []
    for border in borders:
        place = bisect_right(starts, border - 1)  # spans that start before the border
        if place == 0 or reach[place - 1] <= border:
            free.append(border)
    return free


def _trimmed(text: str, start: int, end: int, kept: Sequence[Span]) -> Span | None:
    """Return the sentence between two borders, grown to the spans in it that hold white space at its edge."""
    piece = text[start:end]
    first, last = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
    inside = [span for span in kept if start <= span[0] and span[1] <= end]
    if first >= last and not inside:
        return None
    if first >= last:
        first, last = inside[0]
    return min([first, *(s for s, _ in inside)]), max([last, *(e for _, e in inside)])
