# SPDX-License-Identifier: Apache-2.0
"""FedAvg that goes only a part of the way: θ⁺ = θ + η Σ_k w_k Δ_k (server step of Reddi et al. 2021, SGD)."""

from __future__ import annotations

from pydantic import Field

from medflare.aggregation.base import RuleFacts
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.tensors import State, apply_delta_in_place


class DampedMean(MeanRule):
    """θ⁺ = θ + step · Σ_k w_k Δ_k."""

    facts = RuleFacts(
        summary="FedAvg with a server step.",
        source="Reddi et al. 2021, algorithm 1 with SGD at the server",
    )

    class Settings(NormClipSettings):
        step: float = Field(default=0.5, gt=0, le=1)
        """share of the mean update by which the state moves"""

    settings: Settings

    def finish(self) -> State:
        mean = self.mean()
        for value in mean.values():
            value.mul_(self.settings.step)
        return apply_delta_in_place(self._global, mean)
