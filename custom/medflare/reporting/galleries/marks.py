# SPDX-License-Identifier: Apache-2.0
"""A note's text cut at the borders of its mentions, with what annotators and a model marked in each part.

A mark is told by sign, underline, words and colour. Marks may overlap; of two marks at one place the shorter
one colours the ground and the longer one draws a line above.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from medflare.evaluation.extraction_predictions import EntityMention
from medflare.evaluation.mention_pairs import MentionPair, Verdict
from medflare.reporting.views import Chip

SIGNS: dict[Verdict, str] = {"agree": "✓", "missed": "−", "invented": "+", "type": "≠", "border": "↔"}
MEANINGS: dict[Verdict, str] = {
    "agree": "annotated and extracted alike",
    "missed": "annotated, not extracted",
    "invented": "extracted, not annotated",
    "type": "extracted with another type",
    "border": "extracted with another border",
}
"""Verdict -> its words in the key, in titles and for screen readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a note's text between two borders.

    Attributes:
        text: as in the note.
        style: CSS classes of its mark; "" where nothing is marked.
        title: what the marks at this place say.
        ends: small labels of the marks that end here.
    """

    text: str
    style: str
    title: str
    ends: Sequence[Chip]


def key_of_signs() -> list[Chip]:
    """Return what the signs mean: one mark for each verdict, with its meaning."""
    return [
        Chip(
            style=verdict,
            sign=SIGNS[verdict],
            text="type → type" if verdict == "type" else "type",
            meaning=meaning,
        )
        for verdict, meaning in MEANINGS.items()
    ]


def words_of(mention: EntityMention, text: str) -> str:
    """Return what a mention covers, on one line; a gap is an ellipsis."""
    return " … ".join(" ".join(text[start:end].split()) for start, end in mention.spans)


def title_of(pair: MentionPair, text: str) -> str:
    """Return what a mark says, in words."""
    if pair.gold is None or pair.predicted is None or pair.verdict == "agree":
        return f"{pair.label} “{words_of(pair.sides[0], text)}”: {MEANINGS[pair.verdict]}"
    sides = (f"{side.label} “{words_of(side, text)}”" for side in pair.sides)
    return "annotated as {}, extracted as {}".format(*sides)


def mark_text(text: str, pairs: Sequence[MentionPair]) -> list[Stretch]:
    """Cut a note's text at every border of a mention.

    Args:
        text: of the note.
        pairs: mentions of both sides; offsets beyond the text are cut.

    Returns:
        The parts in order; together they are the text.
    """
    places = {place for pair in pairs for side in pair.sides for span in side.spans for place in span}
    borders = sorted({0, len(text), *(min(place, len(text)) for place in places)})
    short_first = sorted(pairs, key=lambda pair: pair.end - pair.start)
    stretches = []
    for start, end in itertools.pairwise(borders):
        covering = [(pair, verdict) for pair in short_first if (verdict := pair.verdict_at(start, end))]
        style = f"m {covering[0][1]}" if covering else ""
        above = f" over o-{covering[1][1]}" if len(covering) > 1 else ""
        title = "; within ".join(title_of(pair, text) for pair, _ in covering)
        ends = [end_label(pair) for pair in short_first if min(pair.end, len(text)) == end]
        stretches.append(Stretch(text=text[start:end], style=style + above, title=title, ends=ends))
    return stretches


def end_label(pair: MentionPair) -> Chip:
    """Return the small label after a mark: its sign and type."""
    verdict = pair.verdict
    return Chip(style=verdict, text=pair.label, sign=SIGNS[verdict], meaning=MEANINGS[verdict])


def modifier_chip(pair: MentionPair, text: str) -> Chip:
    """Return a modifier with its words."""
    verdict = pair.verdict
    return Chip(
        style=f"m {verdict}",
        text=pair.label,
        title=title_of(pair, text),
        sign=SIGNS[verdict],
        meaning=MEANINGS[verdict],
        emphasis=" → ".join(dict.fromkeys(words_of(side, text) for side in pair.sides)),
    )
