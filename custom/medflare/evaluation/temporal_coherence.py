# SPDX-License-Identifier: Apache-2.0
"""Temporal coherence: does a generated report state the change that happened between two visits?

For every finding of a follow-up visit the change is better, worse, new, resolved or unchanged. What happened
is read from the reference report and, for findings of which it states no change, from the labels of both
visits; what is said is read from the generated text (change_extraction). Each (finding, change) is one
decision. Only visits with a visit before belong here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from medflare.evaluation.statistics import Array, Groups, Statistic, bootstrap, ratio_of_sums, restricted

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
    *("macro_f1", *(f"f1/{change}" for change in CHANGES), "opposite", "accuracy", "accuracy_commonest"),
)
"""Names of `coherence_statistics` after their prefix."""
OTHER_PATIENTS = "change_f1_other_patients"
"""Name of the control of `other_patients_coherence`."""


def coherence_statistics(
    happened: Sequence[Changes], generated: Sequence[str], prefix: str = "change"
) -> dict[str, Statistic]:
    """Return precision, recall and F1 of stated changes, as statistics over visits.

    Names: `{prefix}_{precision|recall|f1}` over all decisions; `{prefix}_moved_*` without "unchanged";
    `{prefix}_macro_f1` mean over the five changes; `{prefix}_f1/{change}`; `{prefix}_opposite`, the share
    of what changed of which the report says the opposite (worse or new for better or resolved, or the
    reverse), the error that harms. `{prefix}_accuracy`: of the findings of which a change happened and one is
    stated, the share with the right one, and `{prefix}_accuracy_commonest` what one and the same change for
    all of them has: both are of the change alone, whatever a draft knows of the findings.
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
    named = np.array([_named(g, s) for g, s in zip(happened, stated, strict=True)], dtype=np.float64)
    named = named.reshape(len(generated), 2 + len(CHANGES))
    statistics[f"{prefix}_accuracy"] = Statistic(named[:, :2], ratio_of_sums)
    statistics[f"{prefix}_accuracy_commonest"] = Statistic(named[:, 1:], _commonest)
    return statistics


def _named(gold: Changes, stated: Changes) -> list[int]:
    """Count findings whose change is the right one, all with a change in both, and those of each change."""
    both = {finding for finding, _ in gold} & {finding for finding, _ in stated}
    right = {finding for finding, _ in gold & stated}
    each = [sum((finding, change) in gold for finding in both) for change in CHANGES]
    return [len(right), len(both), *each]


def _commonest(sums: Array) -> Array:
    """Return the largest of the changes' counts over the number of findings, (..., 1 + changes)."""
    most: Array = sums[..., 1:].max(axis=-1) / np.maximum(sums[..., 0], 1)
    return most


def other_patients_coherence(
    happened: Sequence[Changes],
    generated: Sequence[str],
    patients: Sequence[Hashable],
    strata: Sequence[Hashable],
) -> dict[str, Statistic]:
    """Return the F1 of each draft's changes with those of other patients.

    It is what stated changes are worth that do not come from the patient: the `change_f1` of drafts that were
    dealt out to patients at random, whose mean counts are known. A model that writes one report for all has
    about its own `change_f1`; one that sees findings and guesses changes has more: see `change_accuracy`.

    Args:
        patients: of each visit.
        strata: of each visit; drafts are dealt out within one, for instance a site's visits of one number.

    Returns:
        `change_f1_other_patients`; nothing where no stratum has two patients.
    """
    is_so, is_said = (_indicators(rows) for rows in (happened, changes_in_each(generated)))
    counts, found = np.zeros((len(is_so), 1, 3)), np.zeros(len(is_so), dtype=bool)
    places, persons = _numbered(strata), _numbered(patients)
    for i in range(len(is_so)):
        others = (places == places[i]) & (persons != persons[i])  # (visits,)
        found[i] = others.any()
        if found[i]:
            both = (is_so[others] @ is_said[i]).mean()
            counts[i, 0] = both, is_said[i].sum() - both, is_so[others].sum(1).mean() - both
    if not found.any():
        return {}
    return {OTHER_PATIENTS: restricted(micro_statistic(counts, "f1"), found.tolist())}


def _numbered(names: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return a number for each name, equal for equal ones."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.asarray([numbers[name] for name in names], dtype=np.int64)


def _indicators(visits: Sequence[Changes]) -> NDArray[np.float32]:
    """Return 1 for each (finding, change) of a visit: (visits, FINDINGS · 5)."""
    table = np.zeros((len(visits), FINDINGS, len(CHANGES)), dtype=np.float32)
    for row, changes in enumerate(visits):
        for finding, change in changes:
            table[row, finding, CHANGES.index(change)] = 1
    return table.reshape(len(visits), -1)


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
