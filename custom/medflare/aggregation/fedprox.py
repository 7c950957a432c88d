# SPDX-License-Identifier: Apache-2.0
"""FedProx: FedAvg of sites that are held near the state they received (Li et al. 2020)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from medflare.aggregation.base import RuleFacts, Weighting
from medflare.aggregation.capabilities import AsksClientTerms
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.aggregation.weighted_mean import MOST_TOKENS, MeanRule
from medflare.core.hints import ProximalHint, RoundHints
from medflare.core.idle_settings import idle_if


class FedProx(MeanRule, AsksClientTerms):
    """θ⁺ = θ + Σ w_k Δ_k; sites minimise their loss + (μ/2)‖θ − θ_r‖² over shared trained parameters."""

    facts = RuleFacts(
        summary="FedProx: FedAvg of sites that a proximal term holds near the state they received.",
        source="Li et al. 2020",
    )

    class Settings(NormClipSettings):
        mu: float = Field(default=0.01, ge=0)
        """μ; try 0.001, 0.01, 0.1 and 1. 0 is FedAvg to the last bit."""
        weighting: Weighting = "examples"
        """as in `WeightedMean`."""
        most_tokens: int = Field(default=MOST_TOKENS, ge=1)
        """as in `WeightedMean`."""

        @property
        def without_effect(self) -> dict[str, str]:
            return idle_if((self.weighting != "tokens", f"weighting is '{self.weighting}'", "most_tokens"))

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting(self.settings.weighting, self.settings.most_tokens)

    def client_terms(self) -> RoundHints:
        return RoundHints(proximal=ProximalHint(mu=self.settings.mu))
