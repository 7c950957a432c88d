# SPDX-License-Identifier: Apache-2.0
"""Clinical efficacy: precision, recall and F1 of the 14 conditions that two reports mention.

Positive means code 1 (POSITIVE) only; uncertain counts as not positive. Undefined ratios are 0. All as in
PromptMRG and cvt2distilgpt2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.statistics import Array, Statistic, divide_or_zero, mean_statistic

COMPETITION: tuple[str, ...] = (
    "atelectasis",
    "cardiomegaly",
    "consolidation",
    "edema",
    "pleural effusion",
)
"""The five conditions that the CheXpert competition scores (Irvin et al., AAAI 2019)."""

RATIOS = ("precision", "recall", "f1")


def precision_recall_f1(tp: Array, fp: Array, fn: Array) -> tuple[Array, Array, Array]:
    """Return elementwise precision, recall and F1 of counts of any equal shape; 0 where undefined."""
    return divide_or_zero(tp, tp + fp), divide_or_zero(tp, tp + fn), divide_or_zero(tp, tp + 0.5 * (fp + fn))


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
    """
    tp, fp, fn = counts(gold, predicted)
    example = precision_recall_f1(tp.sum(1), fp.sum(1), fn.sum(1))
    # F1 of a study is at most the mean of its P and R, hence so is the mean; a violation is a bug here.
    assert example[2].mean() <= (example[0].mean() + example[1].mean()) / 2 + 1e-12 if len(tp) else True
    statistics = {
        f"{prefix}_{name}": mean_statistic(column) for name, column in zip(RATIOS, example, strict=True)
    }
    sums = np.concatenate([tp, fp, fn], axis=1)
    five = [CONDITIONS.index(name) for name in COMPETITION]
    everything = list(range(len(CONDITIONS)))
    for position, ratio in enumerate(RATIOS):
        statistics[f"{prefix}_micro_{ratio}"] = Statistic(sums, _micro(everything, position))
        statistics[f"{prefix}_macro_{ratio}"] = Statistic(sums, _macro(position, sums.sum(0)))
        statistics[f"{prefix}_micro5_{ratio}"] = Statistic(sums, _micro(five, position))
    return statistics


def condition_statistics(gold: ArrayLike, predicted: ArrayLike) -> dict[str, Statistic]:
    """Return the F1 of each condition: `label_f1/{condition}`."""
    sums = np.concatenate(counts(gold, predicted), axis=1)
    return {
        f"label_f1/{name}": Statistic(sums, _micro([index], RATIOS.index("f1")))
        for index, name in enumerate(CONDITIONS)
    }


def label_metrics(gold: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return every label metric and every condition's F1 as plain numbers, fractions of 1.

    Args:
        gold, predicted: (studies, 14) integers of `core.conditions.Code`.
    """
    statistics = label_statistics(gold, predicted) | condition_statistics(gold, predicted)
    return {name: item.value for name, item in statistics.items()}


def _split(sums: Array) -> list[Array]:
    return np.split(sums, 3, axis=-1)


def _micro(columns: Sequence[int], position: int) -> Callable[[Array], Array]:
    chosen: NDArray[np.intp] = np.asarray(columns, dtype=np.intp)

    def score(sums: Array) -> Array:
        tp, fp, fn = (part[..., chosen].sum(axis=-1) for part in _split(sums))
        return precision_recall_f1(tp, fp, fn)[position]

    return score


def _macro(position: int, totals: Array) -> Callable[[Array], Array]:
    """Return the mean over conditions, given the sample's summed counts.

    A condition that the sample has and a resample lacks counts as the mean of the others there: as 0, nearly
    all resamples of few studies would lie below the sample itself.
    """
    in_sample = sum(_split(totals)) > 0

    def score(sums: Array) -> Array:
        tp, fp, fn = _split(sums)
        scores = precision_recall_f1(tp, fp, fn)[position]
        occurs = tp + fp + fn > 0
        others = scores.sum(axis=-1, keepdims=True) / np.maximum(occurs.sum(axis=-1, keepdims=True), 1)
        return np.where(in_sample & ~occurs, others, scores).mean(axis=-1)

    return score
