# SPDX-License-Identifier: Apache-2.0
"""Temporal coherence: does a generated report state the change that happened between two visits?

For every finding of a follow-up visit the change is better, worse, new, resolved or unchanged. What happened
is read from the reference report and, for findings of which it states no change, from the labels of both
visits; what is said is read from the generated text (change_extraction). Each (finding, change) is one
decision. Only visits with a visit before belong here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from medflare.core.run_record import Estimate
from medflare.evaluation.change_extraction import (
    CHANGES,
    FINDINGS,
    Change,
    Changes,
    changes_of,
    changes_of_codes,
)
from medflare.evaluation.label_metrics import RATIOS, precision_recall_f1
from medflare.evaluation.statistics import Array, Groups, Statistic, bootstrap

MOVED: tuple[Change, ...] = ("better", "worse", "new", "resolved")
"""The changes that are one; a model that always says "unchanged" finds none of them."""

_UP: frozenset[Change] = frozenset({"worse", "new"})
_DOWN: frozenset[Change] = frozenset({"better", "resolved"})


def changes_that_happened(
    references: Sequence[str], before: ArrayLike | None = None, now: ArrayLike | None = None
) -> list[Changes]:
    """For each follow-up visit what became of its findings.

    Args:
        references: the reports that radiologists wrote.
        before, now: (visits, 14) codes of the visit before and of this one; they add what is new or resolved
            where the text states no change of that finding. None goes by the texts alone.
    """
    stated = changes_of(references)
    if before is None or now is None:
        return stated
    first, second = np.asarray(before), np.asarray(now)
    wanted = (len(stated), FINDINGS + 1)
    if first.shape != wanted or second.shape != wanted:
        raise ValueError(
            f"Codes must be {wanted} for both visits; found {first.shape} before and {second.shape} now."
        )
    found = []
    for text, was, is_now in zip(stated, first.tolist(), second.tolist(), strict=True):
        told = {condition for condition, _ in text}
        labelled = changes_of_codes(was, is_now)
        found.append(text | {pair for pair in labelled if pair[0] not in told})
    return found


def coherence_statistics(
    happened: Sequence[Changes], generated: Sequence[str], prefix: str = "change"
) -> dict[str, Statistic]:
    """Precision, recall and F1 of stated changes, as statistics over visits.

    Names: `{prefix}_{precision|recall|f1}` over all decisions; `{prefix}_moved_*` without "unchanged";
    `{prefix}_macro_f1` mean over the five kinds; `{prefix}_f1/{kind}`; `{prefix}_opposite`, the share of what
    changed of which the report says the opposite (worse or new for better or resolved, or the reverse), the
    error that harms.
    """
    said = changes_of(generated)
    if len(happened) != len(said):
        raise ValueError(f"Found {len(happened)} visits and {len(said)} generated reports; expected as many.")
    counts = np.array(
        [_counts(gold, text) for gold, text in zip(happened, said, strict=True)], dtype=np.float64
    ).reshape(len(said), 3 * len(CHANGES))
    found = {}
    for position, ratio in enumerate(RATIOS):
        found[f"{prefix}_{ratio}"] = Statistic(counts, _micro(CHANGES, position))
        found[f"{prefix}_moved_{ratio}"] = Statistic(counts, _micro(MOVED, position))
    f1 = RATIOS.index("f1")
    found[f"{prefix}_macro_f1"] = Statistic(counts, _macro(f1))
    for change in CHANGES:
        found[f"{prefix}_f1/{change}"] = Statistic(counts, _micro((change,), f1))
    contrary = np.array([_contrary(g, s) for g, s in zip(happened, said, strict=True)], dtype=np.float64)
    found[f"{prefix}_opposite"] = Statistic(contrary.reshape(len(said), 2), _share)
    return found


def evaluate_coherence(
    references: Sequence[str],
    generated: Sequence[str],
    *,
    before: ArrayLike | None = None,
    now: ArrayLike | None = None,
    groups: Groups = None,
    replicates: int = 1000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Every coherence metric of follow-up visits with its 95 % interval; {} where there are none.

    Args:
        before, now: as in `changes_that_happened`.
        groups: the patient of each visit, to resample patients instead of visits.
    """
    if not references:
        return {}
    happened = changes_that_happened(references, before, now)
    found = coherence_statistics(happened, generated)
    return bootstrap(found, groups=groups, replicates=replicates, seed=seed)


def _counts(gold: Changes, said: Changes) -> list[int]:
    """True positives, false positives and false negatives of each kind of change, 15 numbers."""
    kinds = [[change for _, change in pairs] for pairs in (gold & said, said - gold, gold - said)]
    return [found.count(change) for found in kinds for change in CHANGES]


def _contrary(gold: Changes, said: Changes) -> tuple[int, int]:
    """Changes of which the opposite is said, and changes that happened, without "unchanged"."""
    moved = [(condition, change) for condition, change in gold if change in MOVED]
    opposite = [
        any((condition, other) in said for other in (_DOWN if change in _UP else _UP))
        and (condition, change) not in said
        for condition, change in moved
    ]
    return sum(opposite), len(moved)


def _micro(kinds: Sequence[Change], position: int) -> Callable[[Array], Array]:
    chosen = [CHANGES.index(kind) for kind in kinds]

    def score(sums: Array) -> Array:
        tp, fp, fn = (part[..., chosen].sum(axis=-1) for part in np.split(sums, 3, axis=-1))
        return precision_recall_f1(tp, fp, fn)[position]

    return score


def _macro(position: int) -> Callable[[Array], Array]:
    def score(sums: Array) -> Array:
        tp, fp, fn = np.split(sums, 3, axis=-1)
        return precision_recall_f1(tp, fp, fn)[position].mean(axis=-1)

    return score


def _share(sums: Array) -> Array:
    return sums[..., 0] / np.maximum(sums[..., 1], 1)
