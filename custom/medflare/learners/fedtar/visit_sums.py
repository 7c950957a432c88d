# SPDX-License-Identifier: Apache-2.0
"""What a site tells of its visits beside its updates: T slopes of its validation loss, and the time between
visits.

Everything is a sum over sites, so that masks can cover it: 4T + 1 numbers an
exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.core.visit_sums import EXAMPLES, LARGEST, PATIENTS, SLOPES, YEARS

DAYS_A_YEAR = 365.25


def visit_sums_spec(visits: int) -> SharedSpec:
    """Names, shapes and dtypes for T visits."""
    double = torch.float64
    return {
        SLOPES: ((visits,), double),
        EXAMPLES: ((), double),
        YEARS: ((2, visits), double),
        PATIENTS: ((visits,), double),
    }


def silence(visits: int) -> State:
    """The sums of a site that has nothing to tell."""
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in visit_sums_spec(visits).items()}


def visit_times(visits: Iterable[tuple[int, float | None, float | None]], count: int) -> State:
    """Σ years since the visit before and since the first one, and how many visits, for every t = 1..T.

    visits: (t, days since the visit before, days since the first) of every visit of every patient; the first
        has
    none before it. Visits beyond T = count, and those whose days nobody knows, are not counted. ValueError
    where days go backwards.
    """
    found = silence(count)
    for number, gap, since in visits:
        if since is None or number > count:
            continue
        passed = torch.tensor([gap or 0.0, since], dtype=torch.float64)
        if not (passed >= 0).all():
            raise ValueError(f"visit {number} is {passed.min():g} days after another; expected 0 or more.")
        found[YEARS][:, number - 1] += passed / DAYS_A_YEAR
        found[PATIENTS][number - 1] += 1
    return {name: found[name] for name in (YEARS, PATIENTS)}


class VisitTrail:
    """What a site received in the exchanges of a round, and what it tells of it when the round is over.

    Steps w_t − w_{t-1} are kept, T times the shared state in fp32. A site that missed an exchange cannot tell
    the slopes of that round, and tells none. Keeps its own across restarts with `state` and `restore`.

    Args:
        visits: T. times: what `visit_times` gives of the training patients; told where a rule asks for it.
    """

    def __init__(self, visits: int, times: State | None = None) -> None:
        self.visits, self.times = visits, times or {}
        self.round, self.last = -1, 0
        self._at: State = {}
        self._steps: list[State] = []

    def receive(self, plan: RoundPlan, state: State, gradient: Callable[[], tuple[State, int]]) -> State:
        """Takes the state an exchange begins with; returns the sums to send with its update.

        Args:
            plan: with the hint `visit` of the rule; without one nothing is kept and nothing told.
            state: as received, before training.
            gradient: gives ∇L_val at `state` for the shared tensors that learn, and the validation examples
                it is of; called only where it is asked for and a whole round lies behind.
        """
        told, hint = silence(self.visits), plan.hints.visit
        if hint is None:
            return told
        if hint.visits != self.visits:
            raise UpdateError(
                f"the rule has {hint.visits} visits a round, and the method's setting `visits` is "
                f"{self.visits}. Set both to the same number."
            )
        if not (hint.slopes or hint.days):
            return told
        number, visit = hint.round, hint.visit
        if visit == 1:
            if hint.slopes and self._whole(number):
                self._advance(state)
                told |= self._slopes(*gradient())
            told |= self.times if hint.days else {}
            self.round, self.last, self._steps = number, 1, []
        elif (number, visit) == (self.round, self.last + 1):
            self._advance(state)
            self.last = visit
        else:
            self.round = -1
        self._at = _kept(state)
        return told

    def _whole(self, number: int) -> bool:
        """Whether every exchange of the round before this one was seen."""
        return (self.round, self.last) == (number - 1, self.visits)

    def _advance(self, state: State) -> None:
        now = _kept(state)
        self._steps.append({name: now[name] - self._at[name] for name in now})
        self._at = now

    def _slopes(self, gradient: State, examples: int) -> State:
        """n_k ⟨g_k, w_t − w_{t-1}⟩ for t = 1..T, and n_k; nothing where a number is not finite."""
        values = [inner(gradient, step) for step in self._steps]
        if examples < 1 or not all(math.isfinite(value) for value in values):
            return {}
        slopes = torch.tensor(values, dtype=torch.float64).clamp(-LARGEST, LARGEST)
        return {SLOPES: examples * slopes, EXAMPLES: torch.tensor(float(examples), dtype=torch.float64)}

    def state(self) -> tuple[State, dict[str, Any]]:
        """Tensors and JSON values that must survive a restart and never leave."""
        tensors = {f"trail.at/{name}": value for name, value in self._at.items()}
        for number, step in enumerate(self._steps):
            tensors |= {f"trail.{number}/{name}": value for name, value in step.items()}
        return tensors, {"round": self.round, "last": self.last}

    def restore(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Puts back what `state` returned; other tensors are left alone."""
        self.round, self.last = int(values["round"]), int(values["last"])
        parts = [tensors_of(tensors, f"trail.{number}/") for number in range(self.visits)]
        self._at, self._steps = tensors_of(tensors, "trail.at/"), [part for part in parts if part]


def tensors_of(tensors: State, prefix: str) -> State:
    """The tensors under a prefix, without it."""
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def inner(gradient: State, step: State) -> float:
    """⟨g, w_t − w_{t-1}⟩ in float64 over the tensors that have a gradient."""
    pairs = ((value.detach().cpu().double(), step[name].double()) for name, value in gradient.items())
    return sum(float(one.flatten() @ two.flatten()) for one, two in pairs)


def _kept(state: State) -> State:
    """Floating tensors on the CPU, in fp32 or better; counters take no part."""
    return {name: _wide(value) for name, value in state.items() if value.is_floating_point()}


def _wide(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.promote_types(value.dtype, torch.float32), copy=True)
