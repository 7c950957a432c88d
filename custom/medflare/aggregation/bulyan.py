# SPDX-License-Identifier: Apache-2.0
"""Bulyan: repeated Krum, then a mean around the median in each coordinate (El Mhamdi et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medflare.aggregation.krum import krum_scores
from medflare.aggregation.median import middle
from medflare.aggregation.robust import (
    ByzantineRule,
    coordinatewise,
    gram_matrix,
    ordered,
    robust_facts,
    squared_distances,
)
from medflare.core.tensors import State


def mean_around_median(values: Tensor, keep: int) -> Tensor:
    """Mean of each column's `keep` values nearest to its median. values: (m, n). Returns (n).

    They stand side by side in the sorted column; of two such groups equally near, the lower one.
    """
    column = ordered(values)
    median = middle(column)
    nearest, out = torch.full_like(median, torch.inf), torch.zeros_like(median)
    for start in range(len(values) - keep + 1):
        group = column[start : start + keep]
        reach = torch.maximum(median - group[0], group[-1] - median)
        out = torch.where(reach < nearest, group.mean(dim=0), out)
        nearest = torch.minimum(reach, nearest)
    return out


class Bulyan(ByzantineRule):
    """Selects m − 2f updates, one Krum winner after the other; keeps m − 4f values of each coordinate."""

    facts = robust_facts(
        "Bulyan: repeated Krum, then in each coordinate the mean of what is nearest to the median.",
        "El Mhamdi et al. 2018; VG-7",
    )
    sites_per_f = (4, 3)

    def combine(self, deltas: Sequence[State]) -> State:
        selected = self._select(
            squared_distances(gram_matrix(deltas)), max(len(deltas) - 2 * self.settings.f, 1)
        )
        sites = list(self._updates)
        self._report["selected"] = sorted(sites[k] for k in selected)
        keep = max(len(selected) - 2 * self.settings.f, 1)
        chosen = [deltas[k] for k in sorted(selected)]
        return coordinatewise(chosen, lambda values: mean_around_median(values, keep))

    def _select(self, distances: Tensor, count: int) -> list[int]:
        left, selected = list(range(len(distances))), list[int]()
        while len(selected) < count:
            scores = torch.full((len(distances),), torch.inf, dtype=torch.float64)
            scores[left] = krum_scores(distances[left][:, left], self.settings.f)
            winner = next(k for k in self.rank(scores) if k in left)
            selected.append(winner)
            left.remove(winner)
        return selected
