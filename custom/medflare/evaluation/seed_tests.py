# SPDX-License-Identifier: Apache-2.0
"""Tests of one method against another: paired by training seed, corrected for the comparisons of a table.

Two trainings of one method differ by their seeds. A test that resamples only the studies does not see that
difference and calls noise of training significant in 14 to 51 of 100 tables (ST-2), so what is tested here is
the difference of scores within a seed, and how it varies over seeds.

Sources: Student's t for paired samples; ST-2, ST-3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from medflare.evaluation.statistics import Key, holm

LEVEL = 0.95
MIN_SEEDS = 5
"""Seeds below which no difference is marked as significant (ST-2)."""


@dataclass(frozen=True, slots=True)
class SeedDifference:
    """Mean over seeds of one method's score minus another's.

    Attributes:
        low, high: 95 % t interval; None where there is one seed.
        p: two-sided, not corrected; None where there is one seed.
        seeds: number of pairs.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    seeds: int


def difference_between_seeds(ours: Sequence[float], theirs: Sequence[float]) -> SeedDifference:
    """Return the mean of `ours[i] - theirs[i]` with its t interval and test.

    Args:
        ours, theirs: one score for each training seed, in the same order of seeds.

    Raises:
        ValueError: there are no seeds, or not the same number.
    """
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(f"{len(ours)} and {len(theirs)} scores; expected one of each method for every seed.")
    differences = np.subtract(ours, theirs, dtype=np.float64)
    value, seeds = float(differences.mean()), len(differences)
    if seeds == 1:
        return SeedDifference(value, None, None, None, seeds)
    if np.ptp(differences) <= 1e-12 * max(1.0, abs(value)):  # t is 0/0 or infinite
        return SeedDifference(value, value, value, 0.0 if abs(value) > 1e-12 else 1.0, seeds)
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(LEVEL)
    return SeedDifference(value, float(low), float(high), float(test.pvalue), seeds)


def significant(differences: Mapping[Key, SeedDifference]) -> set[Key]:
    """Return the differences of one table that chance does not explain at the 5 % level, after Holm.

    A difference over fewer than `MIN_SEEDS` seeds is none of them; it is no comparison either.
    """
    tested = {
        key: item.p for key, item in differences.items() if item.seeds >= MIN_SEEDS and item.p is not None
    }
    return {key for key, p in holm(tested).items() if not math.isnan(p) and p < 1 - LEVEL}
