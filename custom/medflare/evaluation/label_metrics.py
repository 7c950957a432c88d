# SPDX-License-Identifier: Apache-2.0
"""Clinical efficacy: precision, recall and F1 of the 14 conditions that two reports mention.

Positive means code 1 (POSITIVE) only; uncertain counts as not positive. Undefined ratios are 0. All as in
PromptMRG and cvt2distilgpt2.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.statistics import Array, Statistic, divide_or_zero, mean_statistic, restricted

COMPETITION: tuple[str, ...] = (
    "atelectasis",
    "cardiomegaly",
    "consolidation",
    "edema",
    "pleural effusion",
)
"""The five conditions that the CheXpert competition scores (Irvin et al., AAAI 2019)."""

Ratio = Literal["precision", "recall", "f1"]
RATIOS: tuple[Ratio, ...] = get_args(Ratio)


AVERAGES = ("", "micro_", "macro_", "micro5_")
OTHER_PATIENTS = "label_f1_other_patients"
"""Name of the control of `other_patients_statistic`."""
CONDITION_METRICS = tuple(f"label_f1/{name}" for name in CONDITIONS)
"""Names of `condition_statistics`."""


def label_names(prefix: str = "label") -> tuple[str, ...]:
    """Return the names of `label_statistics`."""
    ratios = tuple(f"{prefix}_{average}{ratio}" for average in AVERAGES for ratio in RATIOS)
    return (*ratios, f"{prefix}_unrecognised", f"{prefix}_unrecognised_generated")


def precision_recall_f1(tp: Array, fp: Array, fn: Array) -> tuple[Array, Array, Array]:
    """Return elementwise precision, recall and F1 of counts of any equal shape; 0 where undefined."""
    return divide_or_zero(tp, tp + fp), divide_or_zero(tp, tp + fn), divide_or_zero(tp, tp + 0.5 * (fp + fn))


def ratio_of(counts: Array, ratio: Ratio) -> Array:
    """Return one ratio of counts (..., 3): true positives, false positives and false negatives."""
    return precision_recall_f1(counts[..., 0], counts[..., 1], counts[..., 2])[RATIOS.index(ratio)]


def micro_statistic(table: Array, ratio: Ratio) -> Statistic:
    """Return a ratio of the counts of all types together.

    Args:
        table: (studies, types, 3) true positives, false positives and false negatives.
    """
    return Statistic(table.sum(axis=1), partial(ratio_of, ratio=ratio))


def macro_statistic(table: Array, ratio: Ratio) -> Statistic:
    """Return the mean of a ratio over types, 0 where there are none; arguments as of `micro_statistic`."""

    def score(sums: Array) -> Array:
        ratios = ratio_of(sums.reshape(*sums.shape[:-1], -1, 3), ratio)
        return np.asarray(ratios.sum(axis=-1) / max(ratios.shape[-1], 1))

    return Statistic(table.reshape(len(table), -1), score)


def counts(gold: ArrayLike, predicted: ArrayLike) -> tuple[Array, Array, Array]:
    """Return true positives, false positives and false negatives, each (studies, 14) of 0 and 1.

    Args:
        gold, predicted: (studies, 14) integers of `Code`.

    Raises:
        ValueError: the shapes are others.
    """
    first, second = np.asarray(gold), np.asarray(predicted)
    width = len(CONDITIONS)
    if first.shape != second.shape or first.ndim != 2 or first.shape[1] != width:
        raise ValueError(
            f"Codes must be (studies, {width}) on both sides; "
            f"found gold {first.shape} and predicted {second.shape}."
        )
    is_gold, is_predicted = first == Code.POSITIVE, second == Code.POSITIVE
    tp, fp, fn = is_gold & is_predicted, ~is_gold & is_predicted, is_gold & ~is_predicted
    return tp.astype(np.float64), fp.astype(np.float64), fn.astype(np.float64)


def label_statistics(gold: ArrayLike, predicted: ArrayLike, prefix: str = "label") -> dict[str, Statistic]:
    """Return all averages as statistics that can be bootstrapped by summing counts.

    Names: `{prefix}_{precision|recall|f1}` are example-based (P, R, F1 of each study, then the mean);
    `{prefix}_micro_*`, `{prefix}_macro_*` over the 14 conditions; `{prefix}_micro5_*` over COMPETITION.
    `{prefix}_unrecognised` and `{prefix}_unrecognised_generated` are shares of references and of generated
    reports that mention no condition and state no normality: they can agree with nothing.
    """
    tp, fp, fn = counts(gold, predicted)
    example = precision_recall_f1(tp.sum(1), fp.sum(1), fn.sum(1))
    # F1 of a study is at most the mean of its P and R, hence so is the mean; a violation is a bug here.
    assert example[2].mean() <= (example[0].mean() + example[1].mean()) / 2 + 1e-12 if len(tp) else True
    statistics = {
        f"{prefix}_{name}": mean_statistic(column) for name, column in zip(RATIOS, example, strict=True)
    }
    table = np.stack([tp, fp, fn], axis=-1)
    five = table[:, [CONDITIONS.index(name) for name in COMPETITION]]
    for ratio in RATIOS:
        statistics[f"{prefix}_micro_{ratio}"] = micro_statistic(table, ratio)
        statistics[f"{prefix}_macro_{ratio}"] = _macro_of_occurring(table, ratio)
        statistics[f"{prefix}_micro5_{ratio}"] = micro_statistic(five, ratio)
    for name, codes in ((f"{prefix}_unrecognised", gold), (f"{prefix}_unrecognised_generated", predicted)):
        statistics[name] = mean_statistic([float(not any(row)) for row in np.asarray(codes).tolist()])
    return statistics


def condition_statistics(gold: ArrayLike, predicted: ArrayLike) -> dict[str, Statistic]:
    """Return the F1 of each condition that occurs in the references: `label_f1/{condition}`.

    Without a reference that affirms it a condition has no F1: 0 would read as a failure to find it.
    """
    table = np.stack(counts(gold, predicted), axis=-1)
    occurs = (table[..., 0] + table[..., 2]).sum(axis=0) > 0  # true positives and false negatives
    return {
        f"label_f1/{name}": micro_statistic(table[:, [i]], "f1")
        for i, name in enumerate(CONDITIONS)
        if occurs[i]
    }


def other_patients_statistic(
    gold: ArrayLike, predicted: ArrayLike, patients: Sequence[Hashable], sites: Sequence[str] | None = None
) -> dict[str, Statistic]:
    """Return the label F1 of each draft with reports of its site's other patients, on average.

    It is what findings are worth that do not come from the image: `label_f1` of drafts that were dealt out to
    patients at random. A model that looks at images has a `label_f1` well above it.

    Args:
        gold, predicted: (studies, 14) integers of `Code`.
        patients: of each study; sites: of each study, None for one site.

    Returns:
        `label_f1_other_patients`; nothing where no site has two patients.
    """
    positive = [np.asarray(codes) == Code.POSITIVE for codes in (gold, predicted)]
    in_report, in_draft = (rows.reshape(-1, len(CONDITIONS)).astype(np.float32) for rows in positive)
    places = np.unique(["" for _ in patients] if sites is None else sites, return_inverse=True)[1]
    numbers = {patient: i for i, patient in enumerate(dict.fromkeys(patients))}
    persons = np.asarray([numbers[patient] for patient in patients])
    mean, found = np.zeros(len(persons)), np.zeros(len(persons), dtype=bool)
    for i in range(len(persons)):
        others = (places == places[i]) & (persons != persons[i])  # (studies,)
        found[i] = others.any()
        if found[i]:
            both = in_report[others] @ in_draft[i]
            stated = in_report[others].sum(1) + in_draft[i].sum()
            mean[i] = divide_or_zero(2 * both, stated).mean()
    return {OTHER_PATIENTS: restricted(mean_statistic(mean), found.tolist())} if found.any() else {}


def label_metrics(gold: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return every label metric and every condition's F1 as plain numbers, fractions of 1.

    Args:
        gold, predicted: (studies, 14) integers of `core.conditions.Code`.
    """
    statistics = label_statistics(gold, predicted) | condition_statistics(gold, predicted)
    return {name: item.value for name, item in statistics.items()}


def _macro_of_occurring(table: Array, ratio: Ratio) -> Statistic:
    """Return the mean of a ratio over conditions.

    A condition that the sample has and a resample lacks counts as the mean of the others there: as 0, nearly
    all resamples of few studies would lie below the sample itself.

    Args:
        table: (studies, conditions, 3) true positives, false positives and false negatives.
    """
    in_sample = table.sum(axis=(0, 2)) > 0

    def score(sums: Array) -> Array:
        each = sums.reshape(*sums.shape[:-1], -1, 3)
        scores, occurs = ratio_of(each, ratio), each.sum(axis=-1) > 0
        others = scores.sum(axis=-1, keepdims=True) / np.maximum(occurs.sum(axis=-1, keepdims=True), 1)
        return np.where(in_sample & ~occurs, others, scores).mean(axis=-1)

    return Statistic(table.reshape(len(table), -1), score)
