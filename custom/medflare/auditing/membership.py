# SPDX-License-Identifier: Apache-2.0
"""Membership inference from scores: ROC area, true positives at a few false ones, intervals over patients.

A score says how much an attacker believes that a record was trained on. Sources: Yeom et al., CSF 2018 (the
loss as a score); Watson et al., ICLR 2022 (calibrated by a model that never saw the record); Carlini et al.,
S&P 2022 (true positive rate at low false positive rates instead of averages).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medflare.core.run_record import Estimate
from medflare.evaluation.statistics import CHUNK, LEVEL, Array

RATES = (0.01, 0.001)
"""False positive rates at which true positives are counted."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Result of a membership attack.

    Attributes:
        auc: probability that a trained record scores above one that was not; 0.5 is guessing.
        true_positives: share of trained records recognised, by false positive rate of `RATES`.
    """

    auc: Estimate
    true_positives: dict[float, Estimate]


@dataclass(frozen=True, slots=True)
class _Curve:
    """Steps of ROC curves: true and false positive rates (R, steps + 1), from (0, 0) to (1, 1)."""

    true: Array
    false: Array

    def areas(self) -> Array:
        """Return the area under each curve, (R,); equal scores count half."""
        areas: Array = np.asarray(np.trapezoid(self.true, self.false, axis=1))
        return areas

    def true_positives(self, rate: float) -> Array:
        """Return the largest true positive rate with at most `rate` false positives, (R,)."""
        return np.where(self.false <= rate + 1e-12, self.true, 0.0).max(axis=1)


def membership_attack(
    members: Sequence[float],
    others: Sequence[float],
    *,
    member_patients: Sequence[Hashable] | None = None,
    other_patients: Sequence[Hashable] | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Attack:
    """Return how well scores tell records that were trained on from others, with 95 % intervals.

    Intervals are percentiles over resampled patients: those trained on and the others are drawn apart.

    Args:
        members, others: scores; a higher one means "trained on".
        member_patients, other_patients: whose each record is; None where each is a patient of its own.

    Raises:
        ValueError: a side has no score, a score is not finite, or names are not one for each score.
    """
    scores = np.concatenate([np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)])
    if not len(members) or not len(others):
        raise ValueError(f"{len(members)} trained and {len(others)} other scores; both sides need one.")
    if not np.isfinite(scores).all():
        raise ValueError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are not finite.")
    trained = np.arange(len(scores)) < len(members)
    whole = _curve(scores, trained, np.ones((1, len(scores))))
    sides = [_codes(member_patients, len(members)), _codes(other_patients, len(others))]
    rng = np.random.default_rng(seed)
    areas, rates = list[Array](), {rate: list[Array]() for rate in RATES}
    step = max(1, CHUNK // len(scores))
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        drawn = _curve(scores, trained, np.concatenate([_weights(side, rows, rng) for side in sides], axis=1))
        areas.append(drawn.areas())
        for rate in RATES:
            rates[rate].append(drawn.true_positives(rate))
    return Attack(
        auc=_estimate(whole.areas(), areas),
        true_positives={rate: _estimate(whole.true_positives(rate), rates[rate]) for rate in RATES},
    )


def means_of_patients(scores: Sequence[float], patients: Sequence[Hashable]) -> list[float]:
    """Return the mean score of each patient, in the order in which patients first occur."""
    codes = _codes(patients, len(scores))
    sums = np.bincount(codes, weights=np.asarray(scores, dtype=np.float64))
    means: list[float] = (sums / np.bincount(codes)).tolist()
    return means


def _curve(scores: Array, trained: NDArray[np.bool_], weights: Array) -> _Curve:
    """Return the ROC curve of each row of weights (R, records); equal scores are one step."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true = np.cumsum(weights[:, order] * trained[order], axis=1)[:, ends]
    false = np.cumsum(weights[:, order] * ~trained[order], axis=1)[:, ends]
    zero = np.zeros((len(weights), 1))
    return _Curve(
        np.concatenate([zero, true / true[:, -1:]], axis=1),
        np.concatenate([zero, false / false[:, -1:]], axis=1),
    )


def _codes(names: Sequence[Hashable] | None, count: int) -> NDArray[np.int64]:
    """Return a number for each name, numbered as they first occur; (count,)."""
    if names is None:
        return np.arange(count)
    if len(names) != count:
        raise ValueError(f"{len(names)} patients for {count} scores.")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _weights(codes: NDArray[np.int64], rows: int, rng: np.random.Generator) -> Array:
    """Return how often each record is in each resample of its patients, (rows, records)."""
    patients = int(codes.max()) + 1
    picks = rng.integers(patients, size=(rows, patients)) + patients * np.arange(rows)[:, None]
    drawn = np.bincount(picks.ravel(), minlength=rows * patients).reshape(rows, patients)
    return drawn[:, codes].astype(np.float64)


def _estimate(whole: Array, drawn: Sequence[Array]) -> Estimate:
    low, high = np.quantile(np.concatenate(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=float(whole[0]), low=float(low), high=float(high))
