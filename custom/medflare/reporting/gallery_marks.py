# SPDX-License-Identifier: Apache-2.0
"""A note's text with what annotators and a model marked in it, told by sign, underline, words and colour.

A mark is annotated and extracted alike, missed, invented, of the wrong type, or has the wrong border. The
text is cut at every border, so that marks may overlap; of two marks at one place the shorter one colours the
ground and the longer one draws a line above.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from medflare.evaluation.extraction_matching import maximum_matching, overlaps
from medflare.evaluation.extraction_predictions import Mention
from medflare.reporting.html import Html, safe

SIGNS = {"agree": "✓", "missed": "−", "invented": "+", "type": "≠", "border": "↔"}
MEANING = {
    "agree": "annotated and extracted alike",
    "missed": "annotated, not extracted",
    "invented": "extracted, not annotated",
    "type": "extracted with another type",
    "border": "extracted with another border",
}
"""Kind of mark -> what it says; the words stand in the key, in titles and before screen readers."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place that at least one side marked: `gold` by the annotators, `said` by the model."""

    gold: Mention | None
    said: Mention | None

    @property
    def kind(self) -> str:
        """A key of MEANING; a wrong type outweighs a wrong border."""
        if self.said is None:
            return "missed"
        if self.gold is None:
            return "invented"
        if self.gold.label != self.said.label:
            return "type"
        return "agree" if self.gold.spans == self.said.spans else "border"

    @property
    def sides(self) -> list[Mention]:
        """The annotation first."""
        return [side for side in (self.gold, self.said) if side is not None]

    @property
    def start(self) -> int:
        return min(side.spans[0][0] for side in self.sides)

    @property
    def end(self) -> int:
        return max(side.spans[-1][1] for side in self.sides)

    @property
    def label(self) -> str:
        """The type, or both where they differ."""
        return " → ".join(dict.fromkeys(side.label for side in self.sides))

    def kind_at(self, start: int, end: int) -> str | None:
        """What to show of this mark between two neighbouring borders; None outside it."""
        gold, said = (_covers(side, start, end) for side in (self.gold, self.said))
        if gold and said:
            return self.kind
        return "missed" if gold else "invented" if said else None


def _covers(mention: Mention | None, start: int, end: int) -> bool:
    return mention is not None and any(a <= start and end <= b for a, b in mention.spans)


def judge(gold: Iterable[Mention], said: Iterable[Mention]) -> list[Mark]:
    """Each mention once, paired with its like: equal, of another type, overlapping; in order of the text."""
    ours, theirs = list(dict.fromkeys(gold)), list(dict.fromkeys(said))
    marks: list[Mark] = []
    for alike in ALIKE:
        graph = overlaps(ours, theirs)
        graph &= np.array([[alike(a, b) for b in theirs] for a in ours], dtype=np.bool_).reshape(graph.shape)
        pairs = [(a, int(b)) for a, b in enumerate(maximum_matching(graph)) if b >= 0]
        marks += [Mark(ours[a], theirs[b]) for a, b in pairs]
        ours = [item for a, item in enumerate(ours) if a not in {pair[0] for pair in pairs}]
        theirs = [item for b, item in enumerate(theirs) if b not in {pair[1] for pair in pairs}]
    marks += [Mark(item, None) for item in ours] + [Mark(None, item) for item in theirs]
    return sorted(marks, key=lambda mark: (mark.start, mark.end, mark.label))


ALIKE: tuple[Callable[[Mention, Mention], bool], ...] = (
    lambda a, b: a == b,
    lambda a, b: a.spans == b.spans,
    lambda a, b: a.label == b.label,
    lambda a, b: True,
)
"""From the best reason to pair two overlapping mentions to none but the overlap."""


def words_of(mention: Mention, text: str) -> str:
    """What a mention covers, on one line; a gap is an ellipsis."""
    return " … ".join(" ".join(text[start:end].split()) for start, end in mention.spans)


def title_of(mark: Mark, text: str) -> str:
    """What a mark says, in words."""
    if mark.gold is None or mark.said is None or mark.kind == "agree":
        return f"{mark.label} “{words_of(mark.sides[0], text)}”: {MEANING[mark.kind]}"
    sides = (f"{side.label} “{words_of(side, text)}”" for side in mark.sides)
    return "annotated as {}, extracted as {}".format(*sides)


def marked_text(text: str, marks: Sequence[Mark]) -> Html:
    """`text` with its marks; every mark has a title, and after its end a small label with sign and type."""
    spans = {place for mark in marks for side in mark.sides for span in side.spans for place in span}
    borders = sorted({0, len(text), *(min(place, len(text)) for place in spans)})
    short_first = sorted(marks, key=lambda mark: mark.end - mark.start)
    parts = []
    for start, end in itertools.pairwise(borders):
        here = [(mark, kind) for mark in short_first if (kind := mark.kind_at(start, end))]
        parts.append(_stretch(text, start, end, here))
        parts += [label_of(mark) for mark in short_first if min(mark.end, len(text)) == end]
    return Html("".join(parts))


def _stretch(text: str, start: int, end: int, here: Sequence[tuple[Mark, str]]) -> str:
    """The text between two borders, under the marks that cover it, the shortest first."""
    words = safe(text[start:end])
    if not here:
        return words
    kinds = f"m {here[0][1]}" + (f" over o-{here[1][1]}" if len(here) > 1 else "")
    told = "; within ".join(title_of(mark, text) for mark, _ in here)
    return f'<mark class="{kinds}" title="{safe(told)}">{words}</mark>'


def sign_of(kind: str) -> Html:
    """A sign for the eye and its meaning for a screen reader."""
    return Html(
        f'<span aria-hidden="true">{SIGNS[kind]}</span><span class="unseen">{safe(MEANING[kind])}: </span>'
    )


def label_of(mark: Mark) -> str:
    """The small label after a mark."""
    return f'<small class="tag {mark.kind}">{sign_of(mark.kind)} {safe(mark.label)}</small>'


def key_of_signs() -> Html:
    """What the signs mean."""
    items = "".join(
        f'<li><mark class="m {kind}">words</mark><small class="tag {kind}">{SIGNS[kind]} '
        f"{'type → type' if kind == 'type' else 'type'}</small> {safe(words)}</li>"
        for kind, words in MEANING.items()
    )
    return Html(f'<ul class="signs" aria-label="Signs">{items}</ul>')
