# SPDX-License-Identifier: Apache-2.0
"""Coordinate-wise trimmed mean (Yin et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from medflare.aggregation.robust import ByzantineRule, coordinatewise, ordered, robust_facts
from medflare.core.tensors import State


def trimmed_mean(values: Tensor, trim: int) -> Tensor:
    """Mean of each column without its `trim` smallest and largest. (m, n) -> (n), m > 2·trim."""
    return ordered(values)[trim : len(values) - trim].mean(dim=0)


class TrimmedMean(ByzantineRule):
    """In each coordinate the mean without the f smallest and the f largest values."""

    facts = robust_facts(
        "Trimmed mean: in each coordinate, without the f smallest and f largest values.",
        "Yin et al. 2018",
    )
    sites_per_f = (2, 1)

    def combine(self, deltas: Sequence[State]) -> State:
        trim = min(self.settings.f, (len(deltas) - 1) // 2)
        return coordinatewise(deltas, lambda values: trimmed_mean(values, trim))
