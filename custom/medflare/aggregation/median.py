# SPDX-License-Identifier: Apache-2.0
"""Coordinate-wise median (Yin et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from medflare.aggregation.robust import RobustRule, coordinatewise, ordered, robust_facts
from medflare.core.tensors import State


def median(values: Tensor) -> Tensor:
    """Return the median (n) of (m, n); of an even number the mean of the two in the middle, unlike torch."""
    return middle(ordered(values))


def middle(column: Tensor) -> Tensor:
    """Return the median of each column that is `ordered`."""
    m = len(column)
    return column[(m - 1) // 2] / 2 + column[m // 2] / 2


class Median(RobustRule):
    """In each coordinate the median over the sites, each of which counts once."""

    facts = robust_facts("Median: in each coordinate, over the sites.", "Yin et al. 2018")

    def combine(self, deltas: Sequence[State]) -> State:
        return coordinatewise(deltas, median)
