# SPDX-License-Identifier: Apache-2.0
"""Temporal coherence: does a generated report state the change that happened between two visits?

For every finding of a follow-up visit the change is better, worse, new, resolved or unchanged. What happened
is read from the reference report and, for findings of which it states no change, from the labels of both
visits; what is said is read from the generated text (change_extraction). Each (finding, change) is one
decision. Only visits with a visit before belong here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from medflare.core.run_record import Estimate
from medflare.evaluation.change_extraction import (
    CHANGES,
    FINDINGS,
    Change,
    Changes,
    changes_in_each,
    changes_of_codes,
)
from medflare.evaluation.label_metrics import RATIOS, macro_statistic, micro_statistic
from medflare.evaluation.statistics import Groups, Statistic, bootstrap, ratio_of_sums

MOVED: tuple[Change, ...] = ("better", "worse", "new", "resolved")
"""The changes that are one; a model that always says "unchanged" finds none of them."""

_UP: frozenset[Change] = frozenset({"worse", "new"})
_DOWN: frozenset[Change] = frozenset({"better", "resolved"})


def changes_that_happened(
    references: Sequence[str], before: ArrayLike | None = None, now: ArrayLike | None = None
) -> list[Changes]:
    """Return, for each follow-up visit, what became of its findings.

    Args:
        references: the reports that radiologists wrote.
        before, now: (visits, 14) codes of the visit before and of this one; they add what is new or resolved
            where the text states no change of that finding. None goes by the texts alone.
    """
    stated = changes_in_each(references)
    if before is None or now is None:
        return stated
    first, second = np.asarray(before), np.asarray(now)
    wanted = (len(stated), FINDINGS + 1)
    if first.shape != wanted or second.shape != wanted:
        raise ValueError(
            f"Codes must be {wanted} for both visits; found {first.shape} before and {second.shape} now."
        )
    visits = []
    for text, was, is_now in zip(stated, first.tolist(), second.tolist(), strict=True):
        stated_here = {condition for condition, _ in text}
        labelled = changes_of_codes(was, is_now)
        visits.append(text | {pair for pair in labelled if pair[0] not in stated_here})
    return visits


COHERENCE = (
    *(f"{prefix}{ratio}" for ratio in RATIOS for prefix in ("", "moved_")),
    *("macro_f1", *(f"f1/{change}" for change in CHANGES), "opposite"),
)
"""Names of `coherence_statistics` after their prefix."""


def coherence_statistics(
    happened: Sequence[Changes], generated: Sequence[str], prefix: str = "change"
) -> dict[str, Statistic]:
    """Return precision, recall and F1 of stated changes, as statistics over visits.

    Names: `{prefix}_{precision|recall|f1}` over all decisions; `{prefix}_moved_*` without "unchanged";
    `{prefix}_macro_f1` mean over the five changes; `{prefix}_f1/{change}`; `{prefix}_opposite`, the share
    of what changed of which the report says the opposite (worse or new for better or resolved, or the
    reverse), the error that harms.
    """
    stated = changes_in_each(generated)
    if len(happened) != len(stated):
        raise ValueError(
            f"Found {len(happened)} visits and {len(stated)} generated reports; expected as many."
        )
    pairs = zip(happened, stated, strict=True)
    table = np.array([_counts(*pair) for pair in pairs], dtype=np.float64).reshape(-1, len(CHANGES), 3)
    moved = table[:, [CHANGES.index(change) for change in MOVED]]
    statistics = {}
    for ratio in RATIOS:
        statistics[f"{prefix}_{ratio}"] = micro_statistic(table, ratio)
        statistics[f"{prefix}_moved_{ratio}"] = micro_statistic(moved, ratio)
    statistics[f"{prefix}_macro_f1"] = macro_statistic(table, "f1")
    for place, change in enumerate(CHANGES):
        statistics[f"{prefix}_f1/{change}"] = micro_statistic(table[:, [place]], "f1")
    contrary = np.array([_contrary(g, s) for g, s in zip(happened, stated, strict=True)], dtype=np.float64)
    statistics[f"{prefix}_opposite"] = Statistic(contrary.reshape(len(generated), 2), ratio_of_sums)
    return statistics


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
    """Return every coherence metric of follow-up visits with its 95 % interval; {} where there are none.

    Args:
        before, now: as in `changes_that_happened`.
        groups: the patient of each visit, to resample patients instead of visits.
    """
    if not references:
        return {}
    happened = changes_that_happened(references, before, now)
    statistics = coherence_statistics(happened, generated)
    return bootstrap(statistics, groups=groups, replicates=replicates, seed=seed)


def _counts(gold: Changes, stated: Changes) -> list[list[int]]:
    """Return true positives, false positives and false negatives of each change: (5, 3)."""
    groups = [[change for _, change in pairs] for pairs in (gold & stated, stated - gold, gold - stated)]
    return [[group.count(change) for group in groups] for change in CHANGES]


def _contrary(gold: Changes, stated: Changes) -> tuple[int, int]:
    """Count changes of which the opposite is stated, and changes that happened, without "unchanged"."""
    moved = [(condition, change) for condition, change in gold if change in MOVED]
    opposite = [
        any((condition, other) in stated for other in (_DOWN if change in _UP else _UP))
        and (condition, change) not in stated
        for condition, change in moved
    ]
    return sum(opposite), len(moved)
