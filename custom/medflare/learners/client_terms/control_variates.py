# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD at a site: steps along g − c_k + c, and the site's own c_k (Karimireddy et al. 2020; 7.3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.learners.client_terms.base import Shared, Term, Told, learned, shift, stepped

CONTROL = "control."
"""Before a shared name: Δc_k of a site on the way up, the server's c on the way down."""


class ControlVariates(Term):
    """c_k stays here and survives rounds and restarts; only its change travels, as a declared sum.

    Two estimates of c_k⁺, which are one and the same under plain SGD: `option_2`, c_k − c +
    (θ_r − θ_k)/Σ_t η_t with the learning rate the optimiser had at each step, and `gradients`, the mean of
    the gradients g_t weighted by those rates. Under AdamW only the second is a gradient: its steps have the
    size of η in every coordinate, whatever the gradients were.

    The correction is added after clipping, so that `option_2` finds the clipped gradients and corrections of
    all sites still add up to nothing.
    """

    def __init__(self) -> None:
        self.own: State = {}
        self._sent: State = {}
        self._sent_round = -1

    def sums_spec(self, shared: Shared) -> SharedSpec:
        return {CONTROL + n: (tuple(p.shape), torch.float32) for n, p in learned(shared).items()}

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        self._take_back(plan)
        self._round, self._learned = plan.round, learned(shared)
        self._from_steps = plan.hints["scaffold"]["control"] == "option_2"
        self._shift = {n: self._difference(n, p, plan.totals) for n, p in self._learned.items()}
        self._start: dict[str, Tensor] = (
            {n: p.detach().to(torch.float32, copy=True) for n, p in self._learned.items()}
            if self._from_steps
            else {}
        )
        self._gradients: dict[str, Tensor] = {}
        self._rates: dict[str, list[float]] = {}

    def _take_back(self, plan: RoundPlan) -> None:
        """The last change counts only if the server has added it: c is the mean of all c_k."""
        known = self._sent_round == plan.round - 1 and "site_index" in plan.hints
        if known and plan.hints["site_index"] not in plan.hints.get("summed", ()):
            for name, change in self._sent.items():
                self.own[name] = self.own[name] - change
        self._sent, self._sent_round = {}, -1

    def _difference(self, name: str, parameter: Tensor, totals: Mapping[str, Tensor]) -> Tensor:
        """c − c_k where the parameter is; both start at 0."""
        none = torch.zeros(parameter.shape)
        difference = totals.get(CONTROL + name, none).float() - self.own.get(name, none)
        return difference.to(parameter.device)

    def before_step(self, optimiser: torch.optim.Optimizer) -> None:
        for name, _, gradient, rate in stepped(optimiser, self._learned):
            self._rates.setdefault(name, []).append(rate)
            if not self._from_steps:
                total = self._gradients.setdefault(name, torch.zeros_like(self._shift[name]))
                total.add_(gradient.float(), alpha=rate)
            shift(gradient, self._shift[name])

    def finish(self) -> Told:
        """Sums Δc_k. Metrics: `control_lr`, the mean actual η; `control_shift`, ‖c − c_k‖."""
        changes = {name: self._change(name, p) for name, p in self._learned.items()}
        for name, change in changes.items():
            self.own[name] = self.own.get(name, torch.zeros_like(change)) + change
        self._sent, self._sent_round = changes, self._round
        rates = [rate for taken in self._rates.values() for rate in taken]
        size = sum(float(value.square().sum()) for value in self._shift.values()) ** 0.5
        self._shift, self._start, self._gradients = {}, {}, {}
        metrics = {"control_lr": sum(rates) / max(len(rates), 1), "control_shift": size}
        return Told(sums={CONTROL + n: value.clone() for n, value in changes.items()}, metrics=metrics)

    def _change(self, name: str, parameter: Tensor) -> Tensor:
        """Δc_k of one tensor; 0 where no step was taken."""
        whole = sum(self._rates.get(name, ()))
        if not whole:
            return torch.zeros(parameter.shape)
        if self._from_steps:
            moved = (self._start[name] - parameter.detach().float()) / whole
            return (moved - self._shift[name]).cpu() - self.own.get(name, torch.zeros(parameter.shape))
        return (self._gradients[name] / whole).cpu() - self.own.get(name, torch.zeros(parameter.shape))

    def state(self) -> State:
        found = {f"own.{n}": value for n, value in self.own.items()}
        found |= {f"sent.{n}": value for n, value in self._sent.items()}
        return found | {"round": torch.tensor(self._sent_round)}

    def restore(self, tensors: State) -> None:
        self.own = {n.removeprefix("own."): v.clone() for n, v in tensors.items() if n.startswith("own.")}
        self._sent = {n.removeprefix("sent."): v.clone() for n, v in tensors.items() if n.startswith("sent.")}
        self._sent_round = int(tensors.get("round", torch.tensor(-1)))
