# SPDX-License-Identifier: Apache-2.0
"""A lower bound on epsilon from guesses about canaries of one training run.

Source: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023, theorem 5.2:
each of m canaries is in the training data by a fair coin; an auditor guesses the coins of r of them. Under
(epsilon, delta)-differential privacy so many right guesses are hardly likelier than with r coins that come up
right with probability e^epsilon / (1 + e^epsilon).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

CONFIDENCE = 0.95
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Shares of the canaries that are guessed, the surest ones; fixed before a score is seen."""
MOST = 60.0
"""Largest epsilon that is looked for; no number of canaries shows more."""


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """Result of the guesses.

    Attributes:
        epsilon: lower bound; 0 where the guesses are no better than chance may be.
        guesses, right: of the share of canaries that gave the bound.
    """

    epsilon: float
    guesses: int
    right: int


def guess_probability(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of at least `right` right guesses under (epsilon, delta)-DP.

    Args:
        guesses: of the `canaries`; about the others nothing is guessed.

    Raises:
        ValueError: not 0 <= right <= guesses <= canaries.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"{right} right of {guesses} guesses about {canaries} canaries is not possible.")
    chance = float(expit(epsilon))
    at_least = float(binom.sf(right - 1, guesses, chance))
    if not delta or not right:
        return min(1.0, at_least)
    # alpha: the largest mean probability of the values just below `right`
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, at_least + 2 * canaries * delta * alpha)


def epsilon_from_guesses(
    right: int, guesses: int, canaries: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest epsilon that so many right guesses rule out with this confidence; 0 for none."""
    doubt = 1 - confidence

    def excess(epsilon: float) -> float:
        return guess_probability(right, guesses, canaries, epsilon, delta) - doubt

    if excess(0.0) > 0:
        return 0.0
    if excess(MOST) <= 0:
        return MOST
    return float(brentq(excess, 0.0, MOST, xtol=1e-6))


def epsilon_lower_bound(
    scores: Sequence[float], included: Sequence[bool], delta: float, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """Return the best lower bound over `SHARES`, each with its part of the doubt (Bonferroni).

    Of each share, the highest half of the scores is guessed to be included and the lowest half not to be;
    equal scores keep their order, which says nothing of the coins.

    Args:
        scores: of all canaries; a higher one means "included". included: their coins.
    """
    if len(scores) != len(included) or len(scores) < 2:
        raise ValueError(f"{len(scores)} scores and {len(included)} coins; expected at least two of each.")
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    coins = np.asarray(included, dtype=bool)[order]
    each = 1 - (1 - confidence) / len(SHARES)
    bounds = []
    for share in SHARES:
        half = max(1, int(len(coins) * share / 2))
        right = int(coins[:half].sum() + (~coins[-half:]).sum())
        epsilon = epsilon_from_guesses(right, 2 * half, len(coins), delta, each)
        bounds.append(EpsilonBound(epsilon, 2 * half, right))
    return max(bounds, key=lambda bound: bound.epsilon)
