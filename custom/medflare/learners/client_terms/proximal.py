# SPDX-License-Identifier: Apache-2.0
"""FedProx at a site: the loss gains (μ/2)‖θ − θ_r‖² (Li et al. 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.learners.client_terms.base import (
    ClientTerm,
    Shared,
    TermOutput,
    add_to_gradient,
    step_gradients,
    trainable,
)


class Proximal(ClientTerm):
    """Add the term's gradient μ(θ − θ_r), in fp32, over shared parameters that learn.

    It is never clipped: clipping bounds what the data say, and μ means the same whatever they say.
    """

    @staticmethod
    def is_requested(hints: RoundHints) -> bool:
        return hints.proximal is not None

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        assert plan.hints.proximal is not None
        self.mu = plan.hints.proximal.mu
        self._trained = trainable(shared) if self.mu else {}
        self._start: dict[str, Tensor] = {
            n: p.detach().to(torch.float32, copy=True) for n, p in self._trained.items()
        }

    def before_step(self, optimiser: torch.optim.Optimizer) -> None:
        for name, parameter, gradient, _ in step_gradients(optimiser, self._trained):
            add_to_gradient(gradient, parameter.float() - self._start[name], self.mu)

    def finish(self) -> TermOutput:
        """Return the metric `drift`, ‖θ_k − θ_r‖ of the trained tensors."""
        if not self._trained:
            return TermOutput()
        distances = [float((p.detach().float() - self._start[n]).norm()) for n, p in self._trained.items()]
        self._start = {}
        return TermOutput(metrics={"drift": math.hypot(*distances)})
