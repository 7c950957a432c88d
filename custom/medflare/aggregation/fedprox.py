# SPDX-License-Identifier: Apache-2.0
"""FedProx: FedAvg of sites that are held near the state they received (algorithms.md 7.2)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from medflare.aggregation.capabilities import AsksClientTerms
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.hints import ProximalHint, RoundHints


class FedProx(WeightedMean, AsksClientTerms):
    """θ⁺ = θ + Σ w_k Δ_k; every site minimises its loss + (μ/2)‖θ − θ_r‖² over shared parameters that learn.

    Args:
        mu: μ; try 0.001, 0.01, 0.1 and 1. 0 is FedAvg to the last bit.
        weighting: as in `WeightedMean`.
        most_tokens: as in `WeightedMean`.
    """

    summary = "FedProx: FedAvg of sites that a proximal term holds near the state they received."
    source = "Li et al. 2020; algorithms.md 7.2, 10"

    def __init__(
        self,
        mu: Annotated[float, Field(ge=0)] = 0.01,
        weighting: Literal["examples", "tokens", "uniform"] = "examples",
        most_tokens: Annotated[int, Field(ge=1)] = 8192,
    ) -> None:
        super().__init__(weighting, most_tokens)
        if not 0 <= mu < math.inf:
            raise ValueError(f"mu is {mu}; expected 0 or more.")
        self.mu = mu

    def client_terms(self) -> RoundHints:
        return RoundHints(proximal=ProximalHint(mu=self.mu))
