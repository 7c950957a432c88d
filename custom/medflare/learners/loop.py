# SPDX-License-Identifier: Apache-2.0
"""Federated training in one process without FLARE: what a run in FLARE must equal, and what studies use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from medflare.learners.base import Learner, RoundPlan, State, Update

MakePlan = Callable[[int], RoundPlan]
OnRound = Callable[[int, State, Mapping[str, Update]], None]


class Rule(Protocol):
    """What is needed of an `aggregation.base.AggregationRule`, which stands above this room."""

    def begin(self, global_state: State) -> None: ...

    def add(self, site: str, update: Update) -> None: ...

    def finish(self) -> State: ...

    def plan_hints(self) -> dict[str, Any]: ...


def federate(
    learners: Mapping[str, Learner],
    rule: Rule,
    rounds: int,
    make_plan: MakePlan,
    on_round: OnRound | None = None,
    state: State | None = None,
) -> State:
    """The shared state after `rounds` rounds over all sites, in order of their names.

    Args:
        learners: site -> learner.
        make_plan: round -> plan; `totals`, the rule's hints and the roster are filled in here.
        on_round: called after each round with its number, the new state and the sites' updates.
        state: where to start; default the first site's initial state.
    """
    sites = sorted(learners)
    state = learners[sites[0]].initial_shared() if state is None else state
    totals: State = {}
    summed: list[int] = []
    for number in range(rounds):
        rule.begin(state)
        updates: dict[str, Update] = {}
        for index, site in enumerate(sites):
            plan = make_plan(number)
            own = {"site_index": index, "sites": len(sites), "summed": summed}
            hints = {**plan.hints, **rule.plan_hints(), **own}
            learners[site].load_shared({name: value.clone() for name, value in state.items()})
            updates[site] = learners[site].fit(replace(plan, hints=hints, totals=totals))
            rule.add(site, updates[site])
        state, totals, summed = rule.finish(), _totals(updates), list(range(len(sites)))
        if on_round is not None:
            on_round(number, state, updates)
    return state


def _totals(updates: Mapping[str, Update]) -> dict[str, Tensor]:
    """Sums over the sites of what their updates declare as sums."""
    out: dict[str, Tensor] = {}
    for update in updates.values():
        for name, value in update.sums.items():
            out[name] = out[name] + value if name in out else value.clone()
    return out
