# SPDX-License-Identifier: Apache-2.0
"""Server optimisers: FedAvgM, FedAdam, FedYogi (Hsu et al. 2019; Reddi et al. 2021; algorithms.md 7.4, 7.5).

The mean change Δ stands in for a negative gradient. Only the sum is needed, but at a server that may read it.
Counters and BatchNorm's running statistics are averaged, not stepped.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import UpdateError
from medflare.core.tensors import State, finite, settled

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class ServerOptimiser(WeightedMean):
    """θ⁺ = θ + step(Δ) with Δ = Σ w_k Δ_k; the moments are kept between rounds.

    Args:
        lr: η_s; tune it to updates of LoRA's size.
        beta1: β1, of the first moment.
        weighting: as in `WeightedMean`.
    """

    reads_sum = True

    def __init__(
        self,
        lr: Annotated[float, Field(gt=0)] = 1e-2,
        beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9,
        weighting: Literal["examples", "tokens", "uniform"] = "examples",
    ) -> None:
        super().__init__(weighting)
        if not lr > 0:
            raise ValueError(f"lr is {lr}; expected a positive number.")
        self.lr, self.beta1 = lr, _decay("beta1", beta1)
        self.m: State = {}
        self.v: State = {}

    def finish(self) -> State:
        change = self.mean()
        for name, mean in change.items():
            if self._global[name].is_floating_point() and not name.endswith(BUFFERS):
                change[name] = self.step(name, mean)
        return settled(self._global, change)

    @abstractmethod
    def step(self, name: str, mean: Tensor) -> Tensor:
        """The change of one tensor, in the place of the sites' mean change; updates its moments."""

    def state_dict(self) -> dict[str, Any]:
        return {"m": dict(self.m), "v": dict(self.v)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.m, self.v = ({n: x.clone() for n, x in state.get(key, {}).items()} for key in ("m", "v"))


class FedAvgM(ServerOptimiser):
    """m = β1 m + Δ; θ += η_s m."""

    summary = "FedAvg with server momentum; needs only sums."
    source = "Hsu, Qi and Brown 2019; algorithms.md 7"

    def __init__(
        self,
        lr: Annotated[float, Field(gt=0)] = 1.0,
        beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9,
        weighting: Literal["examples", "tokens", "uniform"] = "examples",
    ) -> None:
        super().__init__(lr, beta1, weighting)

    def step(self, name: str, mean: Tensor) -> Tensor:
        m = self.m.setdefault(name, torch.zeros_like(mean)).mul_(self.beta1).add_(mean)
        return mean.copy_(m).mul_(self.lr)


class FedAdam(ServerOptimiser):
    """m = β1 m + (1−β1) Δ; v = β2 v + (1−β2) Δ²; θ += η_s m/(√v + ε), without bias correction.

    Args:
        beta2: β2, of the second moment.
        eps: ε.
    """

    summary = "FedAdam: Adam at the server on the mean update; needs only sums."
    source = "Reddi et al. 2021; algorithms.md 7.4"

    def __init__(
        self,
        lr: Annotated[float, Field(gt=0)] = 1e-2,
        beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9,
        beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99,
        eps: Annotated[float, Field(gt=0)] = 1e-3,
        weighting: Literal["examples", "tokens", "uniform"] = "examples",
    ) -> None:
        super().__init__(lr, beta1, weighting)
        if not eps > 0:
            raise ValueError(f"eps is {eps}; expected a positive number.")
        self.beta2, self.eps = _decay("beta2", beta2), eps

    def step(self, name: str, mean: Tensor) -> Tensor:
        m = self.m.setdefault(name, torch.zeros_like(mean)).mul_(self.beta1).add_(mean, alpha=1 - self.beta1)
        v = self.v.setdefault(name, torch.zeros_like(mean))
        self.second_moment(v, mean.square())
        if not finite(v):
            raise UpdateError(
                f"the second moment of '{name}' is no longer finite: its mean change reaches "
                f"{float(mean.abs().max()):.3g}. An update is enormous: look at the losses in run.json."
            )
        return mean.copy_(m).mul_(self.lr).div_(v.sqrt().add_(self.eps))

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        """v of this round in the place of the last one's, from Δ²."""
        v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)


class FedYogi(FedAdam):
    """FedAdam with v = v − (1−β2) Δ² sign(v − Δ²)."""

    summary = "FedYogi: Yogi at the server on the mean update; needs only sums."
    source = "Reddi et al. 2021; algorithms.md 7.5"

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        sign = (v - square).sign_()
        v.sub_(square.mul_(sign), alpha=1 - self.beta2)


def _decay(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; expected 0 or more and less than 1.")
    return value
