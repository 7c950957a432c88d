# SPDX-License-Identifier: Apache-2.0
"""Sums about visits that a site sends beside its updates: T slopes of its validation loss, and visit times.

Everything is a sum over sites, so that masks can cover it: 4T + 1 numbers an exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State, without_prefix
from medflare.core.visit_sums import EXAMPLES, LARGEST, PATIENTS, SLOPES, YEARS

DAYS_A_YEAR = 365.25


def visit_sums_spec(visits: int) -> SharedSpec:
    """Return names, shapes and dtypes for T visits."""
    double = torch.float64
    return {
        SLOPES: ((visits,), double),
        EXAMPLES: ((), double),
        YEARS: ((2, visits), double),
        PATIENTS: ((visits,), double),
    }


def zero_sums(visits: int) -> State:
    """Return the sums of a site that has nothing to send."""
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in visit_sums_spec(visits).items()}


def visit_times(visits: Iterable[tuple[int, float | None, float | None]], count: int) -> State:
    """Return Σ years since the visit before and since the first one, and the number of visits, by t = 1..T.

    Args:
        visits: (t, days since the visit before, days since the first) of every visit of every patient; the
            first has none before it. Visits beyond T = count, and those of unknown days, are not counted.

    Raises:
        ValueError: days go backwards.
    """
    sums = zero_sums(count)
    for number, gap, since in visits:
        if since is None or number > count:
            continue
        passed = torch.tensor([gap or 0.0, since], dtype=torch.float64)
        if not (passed >= 0).all():
            raise ValueError(f"visit {number} is {passed.min():g} days after another; expected 0 or more.")
        sums[YEARS][:, number - 1] += passed / DAYS_A_YEAR
        sums[PATIENTS][number - 1] += 1
    return {name: sums[name] for name in (YEARS, PATIENTS)}


class VisitTrail:
    """The shared states that a site received in the exchanges of a round, and the sums it sends for them.

    FedTAR learns its step sizes from the slopes ⟨∇L_val(w_T), w_t − w_{t-1}⟩ of a round of T exchanges. The
    gradient is at the round's last state w_T, which a site receives only when the next round begins: so the
    slopes of a round are sent with the first exchange of the next one. For them a site keeps the steps
    w_t − w_{t-1}, T times the shared state in fp32; `state` and `restore` carry them over a restart.

    A site that missed an exchange lacks a step. It sends no slopes of that round, rather than slopes that
    would compare different steps, and starts again with the next round's first exchange.

    Args:
        visits: T.
        times: what `visit_times` gives of the training patients; sent where a rule asks for it.

    Attributes:
        round: the round whose exchanges are being followed; -1 while one was missed.
        last: the number of the last exchange received in it.
    """

    def __init__(self, visits: int, times: State | None = None) -> None:
        self.visits, self.times = visits, times or {}
        self.round, self.last = -1, 0
        self._previous: State = {}
        self._steps: list[State] = []

    def receive(self, plan: RoundPlan, state: State, gradient: Callable[[], tuple[State, int]]) -> State:
        """Take the state that an exchange begins with, and return the sums to send with its update.

        Args:
            plan: with the hint `visit` of the rule; without one nothing is kept and the sums are zero.
            state: as received, before training.
            gradient: gives ∇L_val at `state` for the shared tensors that learn, and the number of validation
                visits; called only where slopes are wanted and a complete round lies behind.

        Raises:
            UpdateError: rule and method disagree about T.
        """
        sums, hint = zero_sums(self.visits), plan.hints.visit
        if hint is None:
            return sums
        if hint.visits != self.visits:
            raise UpdateError(
                f"the rule has {hint.visits} visits a round, and the method's setting `visits` is "
                f"{self.visits}. Set both to the same number."
            )
        if not (hint.slopes or hint.days):
            return sums
        if hint.visit == 1:
            # `state` is w_T of the round before: its last step ends here, and its gradient is taken here.
            if hint.slopes and self._is_complete(hint.round - 1):
                self._add_step(state)
                sums |= self._slopes(*gradient())
            sums |= self.times if hint.days else {}
            self.round, self.last, self._steps = hint.round, 1, []
        elif (hint.round, hint.visit) == (self.round, self.last + 1):
            self._add_step(state)
            self.last = hint.visit
        else:
            self.round = -1  # an exchange was missed: no slopes of this round
        self._previous = _kept(state)
        return sums

    def _is_complete(self, number: int) -> bool:
        """Return whether every exchange of a round was received."""
        return (self.round, self.last) == (number, self.visits)

    def _add_step(self, state: State) -> None:
        """Keep w_t − w_{t-1}, from the state received before to this one."""
        now = _kept(state)
        self._steps.append({name: now[name] - self._previous[name] for name in now})
        self._previous = now

    def _slopes(self, gradient: State, examples: int) -> State:
        """Return n_k ⟨g_k, w_t − w_{t-1}⟩ for t = 1..T, and n_k; nothing where a number is not finite."""
        values = [inner(gradient, step) for step in self._steps]
        if examples < 1 or not all(math.isfinite(value) for value in values):
            return {}
        # Clamped before it is weighted: one site with an exploding gradient must not decide the step sizes.
        slopes = torch.tensor(values, dtype=torch.float64).clamp(-LARGEST, LARGEST)
        return {SLOPES: examples * slopes, EXAMPLES: torch.tensor(float(examples), dtype=torch.float64)}

    def state(self) -> tuple[State, dict[str, Any]]:
        """Return tensors and JSON values that must survive a restart and never leave."""
        tensors = {f"trail.at/{name}": value for name, value in self._previous.items()}
        for number, step in enumerate(self._steps):
            tensors |= {f"trail.{number}/{name}": value for name, value in step.items()}
        return tensors, {"round": self.round, "last": self.last}

    def restore(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Put back what `state` returned; other tensors are left alone."""
        self.round, self.last = int(values["round"]), int(values["last"])
        parts = [without_prefix(tensors, f"trail.{number}/") for number in range(self.visits)]
        self._previous, self._steps = without_prefix(tensors, "trail.at/"), [part for part in parts if part]


def inner(gradient: State, step: State) -> float:
    """Return ⟨g, w_t − w_{t-1}⟩ in float64 over the tensors that have a gradient."""
    pairs = ((value.detach().cpu().double(), step[name].double()) for name, value in gradient.items())
    return sum(float(one.flatten() @ two.flatten()) for one, two in pairs)


def _kept(state: State) -> State:
    """Return the floating tensors on the CPU, in fp32 or better; counters take no part."""
    return {name: _widened(value) for name, value in state.items() if value.is_floating_point()}


def _widened(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.promote_types(value.dtype, torch.float32), copy=True)
