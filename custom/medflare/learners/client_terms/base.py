# SPDX-License-Identifier: Apache-2.0
"""Contract of a client term: a demand of an aggregation rule on local training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State

Shared = Mapping[str, Tensor]
"""The live tensors that may leave, under the names of `Learner.shared_spec`."""
Watch = Callable[[torch.optim.Optimizer, int], None]
"""(optimiser, steps it will take in this round) -> nothing; called before the first step."""


@dataclass(slots=True, kw_only=True)
class TermOutput:
    """Parts of an update beside its delta that a rule asked for; fields as in `Update`."""

    sums: State = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    factor: float = 1.0


class ClientTerm(ABC):
    """One client term; it lives as long as its learner and is active in rounds whose hints ask for it."""

    @staticmethod
    @abstractmethod
    def is_requested(hints: RoundHints) -> bool:
        """Return whether the hints of a round ask for this term."""

    def sums_spec(self, shared: Shared) -> SharedSpec:
        """Return names, shapes and dtypes of the auxiliary sums the term adds to an update."""
        return {}

    @abstractmethod
    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        """Start a round from `shared` as it is now."""

    def before_step(self, optimiser: torch.optim.Optimizer) -> None:  # noqa: B027 - most terms act once
        """Act on the gradients, which are complete, and clipped where the method clips."""

    def after_step(self, done: int, steps: int) -> None:  # noqa: B027 - most terms act on gradients
        """Act after `done` of `steps` steps."""

    @abstractmethod
    def finish(self) -> TermOutput:
        """Return the term's part of the update and drop what belongs to the round."""

    def state(self) -> State:
        """Return what must survive a restart and never leaves."""
        return {}

    def restore(self, tensors: State) -> None:  # noqa: B027 - most terms keep nothing
        """Put back what `state` returned."""


def trainable(shared: Shared) -> dict[str, nn.Parameter]:
    """Return the shared tensors that an optimiser moves; running statistics are not among them."""
    return {n: t for n, t in shared.items() if isinstance(t, nn.Parameter) and t.is_floating_point()}


def step_gradients(
    optimiser: torch.optim.Optimizer, shared: Mapping[str, nn.Parameter]
) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Yield (name, parameter, gradient, actual learning rate) of every shared parameter a step will move.

    A parameter that the loss did not reach has no gradient and is left alone (MRG-12).
    """
    names = {id(parameter): name for name, parameter in shared.items()}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names and parameter.grad is not None:
                yield names[id(parameter)], parameter.detach(), parameter.grad, float(group["lr"])


def add_to_gradient(gradient: Tensor, change: Tensor, scale: float = 1.0) -> None:
    """gradient += scale · change in place, added in fp32 whatever the gradient's dtype."""
    gradient.copy_(gradient.float().add_(change, alpha=scale))
