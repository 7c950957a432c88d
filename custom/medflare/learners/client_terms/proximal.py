# SPDX-License-Identifier: Apache-2.0
"""FedProx at a site: the loss gains (μ/2)‖θ − θ_r‖² (Li et al. 2020; algorithms.md 7.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from medflare.core.plan import RoundPlan
from medflare.learners.client_terms.base import Shared, Term, Told, learned, shift, stepped


class Proximal(Term):
    """Adds the term's gradient μ(θ − θ_r), in fp32, over shared parameters that learn.

    It is never clipped: clipping bounds what the data say, and μ means the same whatever they say.
    """

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        self.mu = float(plan.hints["fedprox"]["mu"])
        self._learned = learned(shared) if self.mu else {}
        self._start: dict[str, Tensor] = {
            n: p.detach().to(torch.float32, copy=True) for n, p in self._learned.items()
        }

    def before_step(self, optimiser: torch.optim.Optimizer) -> None:
        for name, parameter, gradient, _ in stepped(optimiser, self._learned):
            shift(gradient, parameter.float() - self._start[name], self.mu)

    def finish(self) -> Told:
        """Metric `drift`: ‖θ_k − θ_r‖ of what learned."""
        if not self._learned:
            return Told()
        away = [float((p.detach().float() - self._start[n]).norm()) for n, p in self._learned.items()]
        self._start = {}
        return Told(metrics={"drift": math.hypot(*away)})
