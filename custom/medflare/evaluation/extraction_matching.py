# SPDX-License-Identifier: Apache-2.0
"""Counts of a note's predictions: true positives, false positives and false negatives.

Strict: exactly the gold code points, and the type. Lenient: at least one code
point in common and the same type, under a maximum one-to-one matching (not first come, first served). A link
needs this of its head and of its modifier. Untyped counts ignore types. Both sides are sets: an item that is
predicted twice counts once, and `duplicates` says how often that happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from medflare.evaluation.extraction_predictions import EntityMention, Link
from medflare.evaluation.label_metrics import precision_recall_f1
from medflare.evaluation.statistics import Array

Item = EntityMention | Link
PairMatrix = NDArray[np.bool_]


class Counts(NamedTuple):
    """Totals; ratios of nothing to nothing are 0 by convention."""

    tp: int
    fp: int
    fn: int

    @property
    def gold(self) -> int:
        """Number of gold annotations."""
        return self.tp + self.fn

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Precision, recall and F1."""
        p, r, f1 = precision_recall_f1(*(np.asarray(x, dtype=np.float64) for x in self))
        return float(p), float(r), float(f1)


class Tally(NamedTuple):
    """Counts of one note: `typed` (types, 3) and `untyped` (3,), columns tp, fp, fn."""

    typed: Array
    untyped: Array


def set_counts(gold: Collection[Hashable], predicted: Collection[Hashable]) -> Counts:
    """Return counts of two sets, whatever they hold: mentions, links, or identifiers of a document."""
    first, second = set(gold), set(predicted)
    return Counts(len(first & second), len(second - first), len(first - second))


def duplicates(items: Sequence[Item]) -> int:
    """Return how many items repeat another one of the same spans and types."""
    return len(items) - len(set(items))


def type_of(item: Item) -> str:
    """Return the type under which an item is counted: that of a mention, or of a link's modifier."""
    return item.mentions[-1].label


def strict_tally(gold: Collection[Item], predicted: Collection[Item], types: Sequence[str]) -> Tally:
    """Count exact matches; untyped, items at one place match as often as both sides have it."""
    first, second = dict.fromkeys(gold), dict.fromkeys(predicted)
    places = Counter(map(_place, first)) & Counter(map(_place, second))
    return _tally([item for item in first if item in second], places.total(), first, second, types)


def lenient_tally(gold: Collection[Item], predicted: Collection[Item], types: Sequence[str]) -> Tally:
    """Count overlapping matches, as many as a one-to-one assignment allows."""
    first, second = list(dict.fromkeys(gold)), list(dict.fromkeys(predicted))
    near = _near(first, second)
    typed = maximum_matching(near & _same_types(first, second)) >= 0
    untyped = int((maximum_matching(near) >= 0).sum())
    return _tally(
        [item for item, hit in zip(first, typed, strict=True) if hit], untyped, first, second, types
    )


def maximum_matching(graph: PairMatrix) -> NDArray[np.int64]:
    """Return the column that each row is matched with, -1 for none; as many pairs as possible.

    Hopcroft & Karp, SIAM J. Comput. 1973, in scipy.
    """
    if not graph.size:
        return np.full(len(graph), -1, dtype=np.int64)
    matching = maximum_bipartite_matching(csr_array(graph), perm_type="column")
    return np.asarray(matching, dtype=np.int64)


def overlaps(gold: Sequence[EntityMention], predicted: Sequence[EntityMention]) -> PairMatrix:
    """Return (gold, predicted): whether two mentions share a code point."""
    if not gold or not predicted:
        return np.zeros((len(gold), len(predicted)), dtype=np.bool_)
    (g, g_first), (p, p_first) = _fragments(gold), _fragments(predicted)
    touching = (g[:, None, 0] < p[None, :, 1]) & (p[None, :, 0] < g[:, None, 1])
    rows = np.logical_or.reduceat(touching, g_first, axis=0)
    return np.asarray(np.logical_or.reduceat(rows, p_first, axis=1), dtype=np.bool_)


def _fragments(mentions: Sequence[EntityMention]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all spans (spans, 2), and where each mention's spans begin."""
    sizes = [len(mention.spans) for mention in mentions]
    spans = np.asarray([span for mention in mentions for span in mention.spans], dtype=np.int64)
    return spans, np.cumsum([0, *sizes[:-1]])


def _near(gold: Sequence[Item], predicted: Sequence[Item]) -> PairMatrix:
    graph = np.ones((len(gold), len(predicted)), dtype=np.bool_)
    for first, second in zip(_parts(gold), _parts(predicted), strict=False):
        graph &= overlaps(first, second)
    return graph


def _same_types(gold: Sequence[Item], predicted: Sequence[Item]) -> PairMatrix:
    graph = np.ones((len(gold), len(predicted)), dtype=np.bool_)
    for first, second in zip(_parts(gold), _parts(predicted), strict=False):
        labels = np.asarray([m.label for m in first]), np.asarray([m.label for m in second])
        graph &= labels[0][:, None] == labels[1][None, :]
    return graph


def _parts(items: Sequence[Item]) -> list[tuple[EntityMention, ...]]:
    """Return the mentions of all items by their role: [entities], or [heads, modifiers]."""
    return list(zip(*(item.mentions for item in items), strict=True))


def _place(item: Item) -> Hashable:
    return tuple(mention.spans for mention in item.mentions)


def _tally(
    matched: Collection[Item],
    untyped: int,
    gold: Collection[Item],
    predicted: Collection[Item],
    types: Sequence[str],
) -> Tally:
    """Return the counts of one note; `matched` are the gold items that were predicted."""
    tp, claimed, real = (Counter(map(type_of, items)) for items in (matched, predicted, gold))
    typed = np.asarray(
        [(tp[t], claimed[t] - tp[t], real[t] - tp[t]) for t in types], dtype=np.float64
    ).reshape(-1, 3)
    plain = (untyped, len(predicted) - untyped, len(gold) - untyped)
    return Tally(typed, np.asarray(plain, dtype=np.float64))
