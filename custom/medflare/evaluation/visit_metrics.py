# SPDX-License-Identifier: Apache-2.0
"""Scores of reports that belong to visits: of each visit, then averaged, and of the changes between visits.

"Per visit, per site, then averaged" (TAR-17) is itself a function of sums over visits, so
that intervals and tests draw whole patients, each with all visits they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medflare.core.run_record import Estimate
from medflare.evaluation.change_extraction import changes_in
from medflare.evaluation.predictions import Prediction, prediction_statistics
from medflare.evaluation.statistics import Array, Statistic, bootstrap, mean_statistic
from medflare.evaluation.temporal_coherence import (
    COHERENCE,
    OTHER_PATIENTS,
    changes_that_happened,
    coherence_statistics,
    other_patients_coherence,
)

SCORES = (
    *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider"),
    *("label_f1", "label_micro_f1", "label_macro_f1"),
)
"""Scores of each visit; label scores are example-based, micro and macro (TAR-17)."""
EACH, MEAN = "visit_{}/{}", "visits/{}"


CHANGED = "change"
UNFOUNDED = "first_visit_changes"
"""Share of reports of first visits that state a change, of those whose reference states none."""


def visit_names(visits: int) -> tuple[str, ...]:
    """Return the names of `evaluate_visits` where patients have so many visits at most."""
    each = [
        EACH.format(number, name) for number in range(1, visits + 1) for name in (*SCORES, f"{CHANGED}_f1")
    ]
    changes = (*(f"{CHANGED}_{name}" for name in COHERENCE), OTHER_PATIENTS)
    return (*each, *map(MEAN.format, SCORES), *changes, UNFOUNDED)


def averaged(parts: Sequence[Statistic]) -> Statistic:
    """Return the plain mean of the parts' values as one statistic over all rows, in the order of the parts.

    A part without a row in a resample is left out of its mean, as its value is not defined there.
    """
    widths = [part.sums.shape[1] for part in parts]
    starts = np.cumsum([0, *widths])
    rows = np.cumsum([0, *map(len, parts)])
    sums = np.zeros((int(rows[-1]), int(starts[-1]) + len(parts)))
    for place, part in enumerate(parts):
        rows_of_place = slice(int(rows[place]), int(rows[place + 1]))
        sums[rows_of_place, int(starts[place]) : int(starts[place + 1])] = part.sums
        sums[rows_of_place, int(starts[-1]) + place] = 1.0

    def score(summed: Array) -> Array:
        pieces = np.split(summed[..., : int(starts[-1])], starts[1:-1], axis=-1)
        values = np.stack([part.score(piece) for part, piece in zip(parts, pieces, strict=True)], axis=-1)
        counted = summed[..., int(starts[-1]) :] > 0
        return np.where(counted, values, 0.0).sum(axis=-1) / np.maximum(counted.sum(axis=-1), 1)

    return Statistic(sums, score)


def by_visit(items: Sequence[Prediction]) -> dict[int, list[Prediction]]:
    """Return visit number -> its reports, in order of the numbers; ValueError for a report of no visit."""
    visits: dict[int, list[Prediction]] = {}
    for item in sorted(items, key=lambda item: -1 if item.visit is None else item.visit):
        if item.visit is None:
            raise ValueError(f"study '{item.study_id}' has no visit number; expected one for each report.")
        visits.setdefault(item.visit, []).append(item)
    return visits


def groups_of(items: Sequence[Prediction]) -> list[str]:
    """Return the patient of each report with its site: a resample draws all reports of one together."""
    return [f"{item.site}/{item.patient_id}" for item in items]


def visit_statistics(items: Sequence[Prediction]) -> dict[int, dict[str, Statistic]]:
    """Return visit number -> every text and label metric over its reports."""
    return {number: prediction_statistics(reports) for number, reports in by_visit(items).items()}


def mean_over_visits(items: Sequence[Prediction], metrics: Sequence[str] = SCORES) -> dict[str, Statistic]:
    """Return each metric's mean over visits; rows are the reports by visit, as `in_visit_order` has them."""
    each = visit_statistics(items)
    return {name: averaged([statistics[name] for statistics in each.values()]) for name in metrics}


def in_visit_order(items: Sequence[Prediction]) -> list[Prediction]:
    """Return the reports as the rows of `mean_over_visits`: all of the first visit, all of the second, ..."""
    return [item for reports in by_visit(items).values() for item in reports]


def follow_ups(items: Sequence[Prediction]) -> list[Prediction]:
    """Return the reports of visits with a known visit before: only these can state a change."""
    return [item for item in items if item.before_codes is not None]


def silent_first_visits(items: Sequence[Prediction]) -> list[Prediction]:
    """Return the reports of visits without a known one before, whose references state no change."""
    return [item for item in items if item.before_codes is None and not changes_in(item.reference)]


def unfounded_statistics(items: Sequence[Prediction]) -> dict[str, Statistic]:
    """Return how often a report compares where there is nothing to compare with; {} without such visits.

    Rows are `silent_first_visits(items)`.
    """
    first = silent_first_visits(items)
    if not first:
        return {}
    return {UNFOUNDED: mean_statistic([float(bool(changes_in(item.generated))) for item in first])}


def change_statistics(items: Sequence[Prediction]) -> dict[str, Statistic]:
    """Return temporal coherence over `follow_ups(items)`, and its control; {} where there are none.

    The control compares with visits of the same number: what it has is not from the patient.
    """
    later = follow_ups(items)
    if not later:
        return {}
    happened = changes_that_happened(
        [item.reference for item in later],
        [item.before_codes or () for item in later],
        [item.gold_codes for item in later],
    )
    written, strata = [item.generated for item in later], [(item.site, item.visit) for item in later]
    control = other_patients_coherence(happened, written, [item.patient_id for item in later], strata)
    return coherence_statistics(happened, written, CHANGED) | control


def evaluate_visits(
    items: Sequence[Prediction], *, fewest: int = 1, replicates: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Return scores of each visit, their means, and of the changes, with 95 % intervals over patients.

    Names: `visit_<t>/<metric>` and `visits/<metric>` for SCORES, `visit_<t>/change_f1` of a visit that
    follows another, `change_*` over all of them, and `first_visit_changes` of those that follow none.

    Args:
        fewest: reports without which no score is given. Where one visit has fewer, no visit has scores: those
            of all reports and of the other visits would tell its own.
    """
    options = {"replicates": replicates, "seed": seed}
    estimates: dict[str, Estimate] = {}
    visits = by_visit(items)
    enough = all(len(reports) >= fewest for reports in visits.values())
    for number, reports in visits.items() if enough else ():
        scores = prediction_statistics(reports)
        each = bootstrap({n: scores[n] for n in SCORES}, groups=groups_of(reports), **options)
        if len(follow_ups(reports)) >= fewest and (changes := change_statistics(reports)):
            groups = groups_of(follow_ups(reports))
            each |= bootstrap({"change_f1": changes["change_f1"]}, groups=groups, **options)
        estimates |= {EACH.format(number, name): value for name, value in each.items()}
    if enough:
        means = bootstrap(mean_over_visits(items), groups=groups_of(in_visit_order(items)), **options)
        estimates |= {MEAN.format(name): value for name, value in means.items()}
    first = groups_of(silent_first_visits(items))
    if len(first) >= fewest:
        estimates |= bootstrap(unfounded_statistics(items), groups=first, **options)
    groups = groups_of(follow_ups(items))
    if len(groups) >= fewest:
        estimates |= bootstrap(change_statistics(items), groups=groups, **options)
    return estimates
