# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: control variates take each site's own drift out of its steps (Karimireddy et al. 2020)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field

from medflare.aggregation.base import RuleFacts, Weighting
from medflare.aggregation.capabilities import AsksClientTerms, UsesAuxiliarySums
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.hints import ControlVariatesHint, RoundHints
from medflare.core.tensors import State, apply_delta_in_place

CONTROL = "control."


class Scaffold(MeanRule, AsksClientTerms, UsesAuxiliarySums):
    """θ⁺ = θ + η_s mean Δ_k; c⁺ = c + (1/K) Σ Δc_k over the accepted updates, K being all sites of the run.

    Sites step along g − c_k + c and send Δc_k as an auxiliary sum; c goes down where the totals of sums do,
    in fp32 both ways: with fp32 updates twice the bytes, with bf16 updates three times. No c_k is seen.
    """

    facts = RuleFacts(
        summary="SCAFFOLD: control variates of sites and server correct every step; needs only sums.",
        source="Karimireddy et al. 2020",
        reads_sum=True,
    )
    auxiliary_sums = (CONTROL,)

    class Settings(NormClipSettings):
        lr: float = Field(default=1.0, gt=0)
        """η_s."""
        control: Literal["gradients", "option_2"] = "gradients"
        """how a site finds its new c_k. "gradients": the mean of its gradients, weighted by the actual
        learning rates; "option_2": c_k − c + (θ_r − θ_k)/Σ η, the paper's. Under SGD they are the same; under
        AdamW the second is no gradient."""
        weighting: Weighting = "uniform"
        """"uniform" as in the paper, or as in `WeightedMean`."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting(self.settings.weighting)
        self.c: State = {}

    def client_terms(self) -> RoundHints:
        return RoundHints(control_variates=ControlVariatesHint(control=self.settings.control))

    def finish(self) -> State:
        change = self.mean()
        for name, value in change.items():
            if self._global[name].is_floating_point():
                value.mul_(self.settings.lr)
        return apply_delta_in_place(self._global, change)

    def update_server_state(self, totals: State, sites: int) -> State:
        """Add Σ Δc_k / K to c, which the sites get in its place."""
        for name, total in totals.items():
            if name.startswith(CONTROL):
                self.c[name] = self.c.get(name, torch.zeros_like(total)) + total / sites
        return {name: value for name, value in totals.items() if not name.startswith(CONTROL)} | self.c

    def report(self) -> dict[str, Any]:
        """Return `weights`; `checks`: ‖c‖."""
        size = math.sqrt(sum(float(value.double().square().sum()) for value in self.c.values()))
        return super().report() | {"checks": {"control_norm": size}}

    def state_dict(self) -> dict[str, Any]:
        return {"c": dict(self.c)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.c = {name: value.clone() for name, value in state.get("c", {}).items()}
