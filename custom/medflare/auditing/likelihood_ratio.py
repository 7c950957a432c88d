# SPDX-License-Identifier: Apache-2.0
"""The likelihood-ratio attack: scores of membership calibrated record by record with shadow models.

Source: Carlini et al., Membership Inference Attacks From First Principles, S&P 2022, algorithm 1 and section
VI-D: with fewer than 64 shadows one variance for all records is better than one of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from medflare.evaluation.statistics import Array

LEAST = 4
"""Smallest number of shadows: two with each record and two without."""


@dataclass(frozen=True, slots=True)
class RatioScores:
    """Scores of records, higher where "trained on" is likelier.

    Attributes:
        online: logarithm of how much likelier the score is under shadows with the record than under those
            without, (R,). offline: deviations above shadows without it, (R,), for an attacker who trained
            none with it.
    """

    online: Array
    offline: Array


def likelihood_ratios(observed: Array, shadows: Array, inside: NDArray[np.bool_]) -> RatioScores:
    """Return how likely each record was trained on.

    The attacked model may be shifted against all shadows, as one that others trained too. The median of this
    shift is taken off first; it needs no knowledge of who was trained on.

    Args:
        observed: score of each record by the attacked model, (R,).
        shadows: scores by each shadow, (K, R). inside: whether it was trained on the record, (K, R), the same
            number of shadows for each record.

    Raises:
        ValueError: a record is inside or outside fewer than two shadows.
    """
    counts = inside.sum(axis=0), (~inside).sum(axis=0)
    if min(side.min() for side in counts) < 2:
        raise ValueError("a record is inside or outside fewer than two shadows; make more of them.")
    means, deviations = [], []
    for mask, count in zip((inside, ~inside), counts, strict=True):
        mean = np.where(mask, shadows, 0.0).sum(axis=0) / count
        squares = np.where(mask, np.square(shadows - mean), 0.0).sum() / (count - 1).sum()
        means.append(mean)
        deviations.append(max(float(np.sqrt(squares)), 1e-9))  # shadows may agree to the last bit
    with_it, without = means
    centred = observed - np.median(observed - (with_it + without) / 2)
    online = norm.logpdf(centred, with_it, deviations[0]) - norm.logpdf(centred, without, deviations[1])
    return RatioScores(online=np.asarray(online), offline=np.asarray((centred - without) / deviations[1]))
