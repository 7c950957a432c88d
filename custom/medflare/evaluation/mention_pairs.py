# SPDX-License-Identifier: Apache-2.0
"""Pairs of annotated and extracted mentions of a note, each mention in one pair, and what a pair says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from medflare.evaluation.extraction_matching import maximum_matching, overlaps
from medflare.evaluation.extraction_predictions import EntityMention

Verdict = Literal["agree", "missed", "invented", "type", "border"]


@dataclass(frozen=True, slots=True)
class MentionPair:
    """A place that at least one side marked: `gold` by the annotators, `predicted` by the model."""

    gold: EntityMention | None
    predicted: EntityMention | None

    @property
    def verdict(self) -> Verdict:
        """Return how far both agree; a wrong type outweighs a wrong border."""
        if self.predicted is None:
            return "missed"
        if self.gold is None:
            return "invented"
        if self.gold.label != self.predicted.label:
            return "type"
        return "agree" if self.gold.spans == self.predicted.spans else "border"

    @property
    def sides(self) -> list[EntityMention]:
        """The mentions there are, the annotation first."""
        return [side for side in (self.gold, self.predicted) if side is not None]

    @property
    def start(self) -> int:
        """First code point that either side covers."""
        return min(side.spans[0][0] for side in self.sides)

    @property
    def end(self) -> int:
        """End of the last span of either side."""
        return max(side.spans[-1][1] for side in self.sides)

    @property
    def label(self) -> str:
        """The type, or both where they differ."""
        return " → ".join(dict.fromkeys(side.label for side in self.sides))

    def verdict_at(self, start: int, end: int) -> Verdict | None:
        """Return what the pair says of the text from `start` to `end`, between neighbouring borders.

        None outside both mentions.
        """
        gold, predicted = (_covers(side, start, end) for side in (self.gold, self.predicted))
        if gold and predicted:
            return self.verdict
        return "missed" if gold else "invented" if predicted else None


def _covers(mention: EntityMention | None, start: int, end: int) -> bool:
    return mention is not None and any(a <= start and end <= b for a, b in mention.spans)


_REASONS: tuple[Callable[[EntityMention, EntityMention], bool], ...] = (
    lambda a, b: a == b,
    lambda a, b: a.spans == b.spans,
    lambda a, b: a.label == b.label,
    lambda a, b: True,
)
"""Reasons to pair two overlapping mentions, from the best one to none but the overlap."""


def pair_mentions(gold: Iterable[EntityMention], predicted: Iterable[EntityMention]) -> list[MentionPair]:
    """Pair each mention with its like: equal, of another type, overlapping; in order of the text.

    Duplicates count once. A mention without a partner is a pair with one side.
    """
    ours, theirs = list(dict.fromkeys(gold)), list(dict.fromkeys(predicted))
    pairs: list[MentionPair] = []
    for alike in _REASONS:
        graph = overlaps(ours, theirs)
        graph &= np.array([[alike(a, b) for b in theirs] for a in ours], dtype=np.bool_).reshape(graph.shape)
        matched = [(a, int(b)) for a, b in enumerate(maximum_matching(graph)) if b >= 0]
        pairs += [MentionPair(ours[a], theirs[b]) for a, b in matched]
        ours = [item for a, item in enumerate(ours) if a not in {pair[0] for pair in matched}]
        theirs = [item for b, item in enumerate(theirs) if b not in {pair[1] for pair in matched}]
    pairs += [MentionPair(item, None) for item in ours] + [MentionPair(None, item) for item in theirs]
    return sorted(pairs, key=lambda pair: (pair.start, pair.end, pair.label))
