# SPDX-License-Identifier: Apache-2.0
"""FedAvg: the mean of the sites' updates, weighted by examples (algorithms.md 1.1, 1.2, 7.1; MRG-17)."""

from __future__ import annotations

from typing import Literal

import torch

from medflare.aggregation.base import AggregationRule
from medflare.learners.base import State, Update


class WeightedMean(AggregationRule):
    """θ⁺ = θ + Σ_k w_k Δ_k with Σ w_k = 1 over the sites that took part; accumulates in fp32 or better."""

    def __init__(self, weighting: Literal["examples", "uniform"] = "examples") -> None:
        if weighting not in ("examples", "uniform"):
            raise ValueError(f"weighting is '{weighting}'; expected 'examples' or 'uniform'.")
        self.weighting = weighting
        self._global: State = {}
        self._sum: State = {}
        self._weight = 0.0

    def begin(self, global_state: State) -> None:
        self._global, self._weight = global_state, 0.0
        self._sum = {
            name: torch.zeros(value.shape, dtype=torch.promote_types(value.dtype, torch.float32))
            for name, value in global_state.items()
        }

    def add(self, site: str, update: Update) -> None:
        weight = float(update.examples) if self.weighting == "examples" else 1.0
        for name, total in self._sum.items():
            total.add_(update.delta[name].to(total.dtype), alpha=weight)
        self._weight += weight

    def finish(self) -> State:
        if self._weight <= 0:
            raise ValueError("no update with a positive weight was added in this round.")
        return {
            name: (value.to(self._sum[name].dtype) + self._sum[name] / self._weight).to(value.dtype)
            for name, value in self._global.items()
        }
