# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD at a site: steps along g − c_k + c, and the site's own c_k (Karimireddy et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.learners.client_terms.base import (
    ClientTerm,
    Shared,
    TermOutput,
    add_to_gradient,
    step_gradients,
    trainable,
)

CONTROL = "control."
"""Before a shared name: Δc_k of a site on the way up, the server's c on the way down."""


class ControlVariates(ClientTerm):
    """c_k stays here and survives rounds and restarts; only its change travels, as an auxiliary sum.

    Two estimates of c_k⁺, which are one and the same under plain SGD: `option_2`, c_k − c +
    (θ_r − θ_k)/Σ_t η_t with the learning rate the optimiser had at each step, and `gradients`, the mean of
    the gradients g_t weighted by those rates. Under AdamW only the second is a gradient: its steps have the
    size of η in every coordinate, whatever the gradients were.

    The correction is added after clipping, so that `option_2` finds the clipped gradients and corrections of
    all sites still add up to nothing.
    """

    def __init__(self) -> None:
        self.control: State = {}
        self._sent: State = {}
        self._sent_round = -1

    @staticmethod
    def is_requested(hints: RoundHints) -> bool:
        return hints.control_variates is not None

    def sums_spec(self, shared: Shared) -> SharedSpec:
        return {CONTROL + n: (tuple(p.shape), torch.float32) for n, p in trainable(shared).items()}

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        assert plan.hints.control_variates is not None
        self._revert_unsummed_change(plan)
        self._round, self._trained = plan.round, trainable(shared)
        self._from_steps = plan.hints.control_variates.control == "option_2"
        self._shift = {n: self._difference(n, p, plan.totals) for n, p in self._trained.items()}
        self._start: dict[str, Tensor] = (
            {n: p.detach().to(torch.float32, copy=True) for n, p in self._trained.items()}
            if self._from_steps
            else {}
        )
        self._gradients: dict[str, Tensor] = {}
        self._rates: dict[str, list[float]] = {}

    def _revert_unsummed_change(self, plan: RoundPlan) -> None:
        """Take the last change back unless the server has added it: c must be the mean of all c_k."""
        known = self._sent_round == plan.round - 1 and plan.hints.site_index is not None
        if known and plan.hints.site_index not in plan.hints.summed:
            for name, change in self._sent.items():
                self.control[name] = self.control[name] - change
        self._sent, self._sent_round = {}, -1

    def _difference(self, name: str, parameter: Tensor, totals: Mapping[str, Tensor]) -> Tensor:
        """Return c − c_k on the parameter's device; both start at 0."""
        zero = torch.zeros(parameter.shape)
        difference = totals.get(CONTROL + name, zero).float() - self.control.get(name, zero)
        return difference.to(parameter.device)

    def before_step(self, optimiser: torch.optim.Optimizer) -> None:
        for name, _, gradient, rate in step_gradients(optimiser, self._trained):
            self._rates.setdefault(name, []).append(rate)
            if not self._from_steps:
                # the plain gradient counts: with the correction in it c_k would average itself
                total = self._gradients.setdefault(name, torch.zeros_like(self._shift[name]))
                total.add_(gradient.float(), alpha=rate)
            add_to_gradient(gradient, self._shift[name])

    def finish(self) -> TermOutput:
        """Return the sums Δc_k; metrics: `control_lr`, the mean actual η, and `control_shift`, ‖c − c_k‖."""
        changes = {name: self._change(name, p) for name, p in self._trained.items()}
        for name, change in changes.items():
            self.control[name] = self.control.get(name, torch.zeros_like(change)) + change
        self._sent, self._sent_round = changes, self._round
        rates = [rate for taken in self._rates.values() for rate in taken]
        size = sum(float(value.square().sum()) for value in self._shift.values()) ** 0.5
        self._shift, self._start, self._gradients = {}, {}, {}
        metrics = {"control_lr": sum(rates) / max(len(rates), 1), "control_shift": size}
        return TermOutput(sums={CONTROL + n: value.clone() for n, value in changes.items()}, metrics=metrics)

    def _change(self, name: str, parameter: Tensor) -> Tensor:
        """Return Δc_k of one tensor on the CPU; 0 where no step was taken."""
        total_rate = sum(self._rates.get(name, ()))
        if not total_rate:
            return torch.zeros(parameter.shape)
        if self._from_steps:
            mean_gradient = (self._start[name] - parameter.detach().float()) / total_rate
            estimate = (mean_gradient - self._shift[name]).cpu()
        else:
            estimate = (self._gradients[name] / total_rate).cpu()
        return estimate - self.control.get(name, torch.zeros(parameter.shape))

    def state(self) -> State:
        tensors = {f"own.{n}": value for n, value in self.control.items()}
        tensors |= {f"sent.{n}": value for n, value in self._sent.items()}
        return tensors | {"round": torch.tensor(self._sent_round)}

    def restore(self, tensors: State) -> None:
        self.control = {n.removeprefix("own."): v.clone() for n, v in tensors.items() if n.startswith("own.")}
        self._sent = {n.removeprefix("sent."): v.clone() for n, v in tensors.items() if n.startswith("sent.")}
        self._sent_round = int(tensors.get("round", torch.tensor(-1)))
