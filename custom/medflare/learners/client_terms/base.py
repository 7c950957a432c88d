# SPDX-License-Identifier: Apache-2.0
"""What one demand of an aggregation rule on local training is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State

Shared = Mapping[str, Tensor]
"""The live tensors that may leave, under the names of `Learner.shared_spec`."""
Watch = Callable[[torch.optim.Optimizer, int], None]
"""(optimiser, steps it will take in this round) -> nothing; told before the first step."""


@dataclass(slots=True, kw_only=True)
class Told:
    """What an update holds beside its differences because a rule asked for it; see `learners.base.Update`."""

    sums: State = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    factor: float = 1.0


class Term:
    """One demand; it lives as long as its learner and is active in rounds whose hints name it."""

    def sums_spec(self, shared: Shared) -> SharedSpec:
        """The sums it adds to an update."""
        return {}

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        """A round starts from `shared` as it is now."""

    def before_step(self, optimiser: torch.optim.Optimizer) -> None:
        """Gradients are complete, and clipped where the method clips."""

    def after_step(self, done: int, steps: int) -> None:
        """`done` of `steps` steps are taken."""

    def finish(self) -> Told:
        """The round is over."""
        return Told()

    def state(self) -> State:
        """What must survive a restart and never leaves."""
        return {}

    def restore(self, tensors: State) -> None:
        """Puts back what `state` returned."""


def learned(shared: Shared) -> dict[str, nn.Parameter]:
    """The shared tensors that an optimiser moves; running statistics are not among them."""
    return {n: t for n, t in shared.items() if isinstance(t, nn.Parameter) and t.is_floating_point()}


def stepped(
    optimiser: torch.optim.Optimizer, shared: Mapping[str, nn.Parameter]
) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """(name, parameter, gradient, actual learning rate) of every shared parameter that a step will move.

    A parameter that the loss did not reach has no gradient and is left alone (MRG-12).
    """
    names = {id(parameter): name for name, parameter in shared.items()}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names and parameter.grad is not None:
                yield names[id(parameter)], parameter.detach(), parameter.grad, float(group["lr"])


def shift(gradient: Tensor, by: Tensor, scale: float = 1.0) -> None:
    """gradient += scale · by, added in fp32 whatever the gradient's dtype."""
    gradient.copy_(gradient.float().add_(by, alpha=scale))
