# SPDX-License-Identifier: Apache-2.0
"""Server optimisers: FedAvgM, FedAdam, FedYogi (Hsu et al. 2019; Reddi et al. 2021).

The mean change Δ stands in for a negative gradient. Only the sum is needed, but at a server that may read it.
Counters and BatchNorm's running statistics are averaged, not stepped.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from medflare.aggregation.base import RuleFacts, Weighting
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.errors import UpdateError
from medflare.core.tensors import State, apply_delta_in_place, finite

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class ServerOptimiser(MeanRule):
    """θ⁺ = θ + step(Δ) with Δ = Σ w_k Δ_k; the moments are kept between rounds."""

    class Settings(NormClipSettings):
        lr: float = Field(default=1e-2, gt=0)
        """η_s; tune it to updates of LoRA's size."""
        beta1: float = Field(default=0.9, ge=0, lt=1)
        """β1, of the first moment."""
        weighting: Weighting = "examples"
        """as in `WeightedMean`."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting(self.settings.weighting)
        self.m: State = {}
        self.v: State = {}

    def finish(self) -> State:
        change = self.mean()
        for name, mean in change.items():
            if self._global[name].is_floating_point() and not name.endswith(BUFFERS):
                change[name] = self.step(name, mean)
        return apply_delta_in_place(self._global, change)

    @abstractmethod
    def step(self, name: str, mean: Tensor) -> Tensor:
        """Return the change of one tensor, in the place of the mean change; update its moments.

        Raises:
            UpdateError: a moment is no longer finite.
        """

    def state_dict(self) -> dict[str, Any]:
        return {"m": dict(self.m), "v": dict(self.v)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.m, self.v = ({n: x.clone() for n, x in state.get(key, {}).items()} for key in ("m", "v"))


class FedAvgM(ServerOptimiser):
    """m = β1 m + Δ; θ += η_s m."""

    facts = RuleFacts(
        summary="FedAvg with server momentum; needs only sums.",
        source="Hsu, Qi and Brown 2019",
        reads_sum=True,
        server_optimiser=True,
    )

    class Settings(ServerOptimiser.Settings):
        lr: float = Field(default=1.0, gt=0)
        """η_s; tune it to updates of LoRA's size."""

    settings: Settings

    def step(self, name: str, mean: Tensor) -> Tensor:
        m = self.m.setdefault(name, torch.zeros_like(mean)).mul_(self.settings.beta1).add_(mean)
        return mean.copy_(m).mul_(self.settings.lr)


class FedAdam(ServerOptimiser):
    """m = β1 m + (1−β1) Δ; v = β2 v + (1−β2) Δ²; θ += η_s m/(√v + ε), without bias correction."""

    facts = RuleFacts(
        summary="FedAdam: Adam at the server on the mean update; needs only sums.",
        source="Reddi et al. 2021",
        reads_sum=True,
        server_optimiser=True,
    )

    class Settings(ServerOptimiser.Settings):
        beta2: float = Field(default=0.99, ge=0, lt=1)
        """β2, of the second moment."""
        eps: float = Field(default=1e-3, gt=0)
        """ε."""

    settings: Settings

    def step(self, name: str, mean: Tensor) -> Tensor:
        m = (
            self.m.setdefault(name, torch.zeros_like(mean))
            .mul_(self.settings.beta1)
            .add_(mean, alpha=1 - self.settings.beta1)
        )
        v = self.v.setdefault(name, torch.zeros_like(mean))
        self.second_moment(v, mean.square())
        if not finite(v):
            raise UpdateError(
                f"the second moment of '{name}' is no longer finite: its mean change reaches "
                f"{float(mean.abs().max()):.3g}. An update is enormous: look at the losses in run.json."
            )
        return mean.copy_(m).mul_(self.settings.lr).div_(v.sqrt().add_(self.settings.eps))

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        """Update the second moment v in place from Δ²."""
        v.mul_(self.settings.beta2).add_(square, alpha=1 - self.settings.beta2)


class FedYogi(FedAdam):
    """FedAdam with v = v − (1−β2) Δ² sign(v − Δ²)."""

    facts = RuleFacts(
        summary="FedYogi: Yogi at the server on the mean update; needs only sums.",
        source="Reddi et al. 2021",
        reads_sum=True,
        server_optimiser=True,
    )

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        sign = (v - square).sign_()
        v.sub_(square.mul_(sign), alpha=1 - self.settings.beta2)
