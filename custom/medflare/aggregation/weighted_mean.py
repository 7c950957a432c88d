# SPDX-License-Identifier: Apache-2.0
"""FedAvg: the mean of the sites' updates, weighted by examples (algorithms.md 1.1, 1.2, 7.1; MRG-17)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import ReadsMetrics
from medflare.core.errors import UpdateError
from medflare.core.tensors import State, add_scaled, settled, zeros
from medflare.core.update import Update


class WeightedMean(AggregationRule, ReadsMetrics):
    """θ⁺ = θ + Σ_k w_k Δ_k with Σ w_k = 1 over the sites that took part (ML-1, ML-2).

    Args:
        weighting: "examples"; "tokens" for supervised tokens, which a learner reports as its metric `tokens`
            (what the released code of paper 002 does); or "uniform".
        most_tokens: supervised tokens for which one example may count, so that no site can claim any weight.
    """

    summary = "FedAvg: mean of the updates, weighted by training examples."
    source = "McMahan et al. 2017; algorithms.md 1.1, 1.2, 7.1; ML-1, ML-2, MRG-17, VG-1"

    def __init__(
        self,
        weighting: Literal["examples", "tokens", "uniform"] = "examples",
        most_tokens: Annotated[int, Field(ge=1)] = 8192,
    ) -> None:
        if weighting not in ("examples", "tokens", "uniform"):
            raise ValueError(f"weighting is '{weighting}'; expected 'examples', 'tokens' or 'uniform'.")
        if not most_tokens >= 1:
            raise ValueError(f"most_tokens is {most_tokens}; expected 1 or more.")
        self.weighting, self.most_tokens = weighting, most_tokens
        self._global: State = {}
        self._sum: State = {}
        self._weights: dict[str, float] = {}
        self._shares: dict[str, float] = {}

    def weight(self, site: str, update: Update) -> float:
        """How much an update counts before normalisation."""
        if self.weighting == "tokens":
            return self._tokens(site, update) * update.factor
        return (update.examples if self.weighting == "examples" else 1.0) * update.factor

    def _tokens(self, site: str, update: Update) -> float:
        tokens = update.metrics.get("tokens", math.nan)
        most = update.examples * self.most_tokens
        if not 1 <= tokens <= most:
            raise UpdateError(f"metric 'tokens' of '{site}' is {tokens:g}; weighting needs 1 to {most}.")
        return tokens

    def metrics_read(self) -> tuple[str, ...]:
        return ("tokens",) if self.weighting == "tokens" else ()

    def begin(self, global_state: State) -> None:
        self._global, self._weights, self._sum = global_state, {}, zeros(global_state)

    def add(self, site: str, update: Update) -> None:
        weight = self.weight(site, update)
        add_scaled(self._sum, update.delta, weight)
        self._weights[site] = weight

    def mean(self) -> State:
        """Σ w_k Δ_k of what was added, in the place of the sum; ValueError if that was nothing."""
        whole = sum(self._weights.values())
        if whole <= 0:
            raise ValueError("no update with a positive weight was added in this round.")
        self._shares = {site: weight / whole for site, weight in self._weights.items()}
        total, self._sum = self._sum, {}
        for value in total.values():
            value.div_(whole)
        return total

    def finish(self) -> State:
        return settled(self._global, self.mean())

    def report(self) -> dict[str, Any]:
        """`weights`: each site's w_k."""
        return {"weights": self._shares}
