# SPDX-License-Identifier: Apache-2.0
"""Scores of reports that belong to visits: of each visit, then averaged, and of the changes between visits.

"Per visit, per site, then averaged" (TAR-17) is itself a function of sums over visits, so
that intervals and tests draw whole patients, each with all visits they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medflare.core.run_record import Estimate
from medflare.evaluation.predictions import Prediction, prediction_statistics
from medflare.evaluation.statistics import Array, Statistic, bootstrap
from medflare.evaluation.temporal_coherence import changes_that_happened, coherence_statistics

SCORES = (
    *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider"),
    *("label_f1", "label_micro_f1", "label_macro_f1"),
)
"""What is scored of each visit; label scores example-based, micro and macro (TAR-17)."""
EACH, MEAN = "visit_{}/{}", "visits/{}"


def averaged(parts: Sequence[Statistic]) -> Statistic:
    """The plain mean of the parts' values as one statistic over the rows of all of them, in their order.

    A part without a row in a resample is left out of its mean, as its value is not defined there.
    """
    widths = [part.sums.shape[1] for part in parts]
    starts = np.cumsum([0, *widths])
    rows = np.cumsum([0, *map(len, parts)])
    sums = np.zeros((int(rows[-1]), int(starts[-1]) + len(parts)))
    for place, part in enumerate(parts):
        own = slice(int(rows[place]), int(rows[place + 1]))
        sums[own, int(starts[place]) : int(starts[place + 1])] = part.sums
        sums[own, int(starts[-1]) + place] = 1.0

    def score(summed: Array) -> Array:
        pieces = np.split(summed[..., : int(starts[-1])], starts[1:-1], axis=-1)
        values = np.stack([part.score(piece) for part, piece in zip(parts, pieces, strict=True)], axis=-1)
        there = summed[..., int(starts[-1]) :] > 0
        return np.where(there, values, 0.0).sum(axis=-1) / np.maximum(there.sum(axis=-1), 1)

    return Statistic(sums, score)


def by_visit(items: Sequence[Prediction]) -> dict[int, list[Prediction]]:
    """Visit number -> its reports, in order of the numbers. ValueError for a report of no visit."""
    found: dict[int, list[Prediction]] = {}
    for item in sorted(items, key=lambda item: -1 if item.visit is None else item.visit):
        if item.visit is None:
            raise ValueError(f"study '{item.study_id}' has no visit number; expected one for each report.")
        found.setdefault(item.visit, []).append(item)
    return found


def groups_of(items: Sequence[Prediction]) -> list[str]:
    """The patient of each report, told apart between sites: what a resample draws as a whole."""
    return [f"{item.site}/{item.patient_id}" for item in items]


def visit_statistics(items: Sequence[Prediction]) -> dict[int, dict[str, Statistic]]:
    """Visit number -> every text and label metric over its reports."""
    return {number: prediction_statistics(own) for number, own in by_visit(items).items()}


def mean_over_visits(items: Sequence[Prediction], metrics: Sequence[str] = SCORES) -> dict[str, Statistic]:
    """Each metric's mean over visits; rows are the reports by visit, as `in_visit_order` has them."""
    each = visit_statistics(items)
    return {name: averaged([found[name] for found in each.values()]) for name in metrics}


def in_visit_order(items: Sequence[Prediction]) -> list[Prediction]:
    """The reports as the rows of `mean_over_visits`: all of the first visit, all of the second, ..."""
    return [item for own in by_visit(items).values() for item in own]


def follow_ups(items: Sequence[Prediction]) -> list[Prediction]:
    """Reports of visits with a known visit before: only these can state a change."""
    return [item for item in items if item.before_codes is not None]


def change_statistics(items: Sequence[Prediction]) -> dict[str, Statistic]:
    """Temporal coherence over `follow_ups(items)`; {} where there are none."""
    later = follow_ups(items)
    if not later:
        return {}
    happened = changes_that_happened(
        [item.reference for item in later],
        [item.before_codes or () for item in later],
        [item.gold_codes for item in later],
    )
    return coherence_statistics(happened, [item.generated for item in later])


def evaluate_visits(
    items: Sequence[Prediction], *, replicates: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Scores of each visit, their means over visits, and of the changes, with 95 % intervals over patients.

    Names: `visit_<t>/<metric>` and `visits/<metric>` for SCORES, `visit_<t>/change_f1` of a visit that
    follows another, and `change_*` over all of them.
    """
    options = {"replicates": replicates, "seed": seed}
    found: dict[str, Estimate] = {}
    for number, own in by_visit(items).items():
        scores = prediction_statistics(own)
        each = bootstrap({n: scores[n] for n in SCORES}, groups=groups_of(own), **options)
        if changes := change_statistics(own):
            groups = groups_of(follow_ups(own))
            each |= bootstrap({"change_f1": changes["change_f1"]}, groups=groups, **options)
        found |= {EACH.format(number, name): value for name, value in each.items()}
    means = bootstrap(mean_over_visits(items), groups=groups_of(in_visit_order(items)), **options)
    found |= {MEAN.format(name): value for name, value in means.items()}
    groups = groups_of(follow_ups(items))
    return found | bootstrap(change_statistics(items), groups=groups, **options)
