# SPDX-License-Identifier: Apache-2.0
"""Buffered asynchronous training in one process, on a simulated clock (FedBuff, AISTATS 2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.staleness import scaled, staleness_weight
from medflare.core.learner import Learner
from medflare.core.tensors import State
from medflare.core.timing import Timing
from medflare.core.update import Update
from medflare.in_process.clocked_loop import ClockedRound, ClockedRun, OnClocked, Workload, check_deadline
from medflare.in_process.loop import FederationLoop, MakePlan
from medflare.selection.clock import SimulatedClock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """A site that trains.

    Attributes:
        round: whose state it received.
        ends: simulated seconds at which its update comes, or it is given up.
        update: None of a site that vanishes.
    """

    round: int
    ends: float
    timing: Timing | None
    update: Update | None


def federate_buffered(
    learners: Mapping[str, Learner],
    rule: AggregationRule,
    rounds: int,
    make_plan: MakePlan,
    clock: SimulatedClock,
    work: Workload,
    buffer: int,
    deadline: float = math.inf,
    on_round: OnClocked | None = None,
    state: State | None = None,
    budget: float = math.inf,
) -> ClockedRun:
    """Run rounds that end with `buffer` updates each; the sites train on at their own pace.

    A site is sent the state of the round in which it is free, and trains one update at a time. An update that
    is s rounds old counts with (1 + s)^-1/2 of its change. What a run in FLARE with mode `async` does.

    Args:
        buffer: K; with fewer sites, all of them.
        deadline, on_round, state, budget: as in `federate_clocked`. A site that vanishes is asked again after
            the deadline.
    """
    check_deadline(clock, deadline, sorted(learners))
    loop = FederationLoop(learners, rule, make_plan, state)
    run, training = ClockedRun(state=loop.state), dict[str, _Training]()
    for number in range(rounds):
        if clock.now >= budget:
            break
        began = clock.now
        for site in (site for site in loop.sites if site not in training):
            examples = work.examples(make_plan(number), loop.train[site])
            timing = clock.timing(site, number, examples, work.down, work.up)
            lost = timing is None or timing.total > deadline
            training[site] = _Training(
                round=number,
                ends=began + (deadline if lost or timing is None else timing.total),
                timing=timing,
                update=None if lost else loop.fit(site, number),
            )
        came, vanished = dict[str, _Training](), list[str]()
        while training and len(came) < buffer:
            site = min(training, key=lambda name: (training[name].ends, name))
            one = training.pop(site)
            clock.now = max(clock.now, one.ends)
            if one.update is None:
                vanished.append(site)
            else:
                came[site] = one
        updates = loop.aggregate(number, ((site, _aged(came[site], number)) for site in sorted(came)))
        measured = on_round(number, loop.state, updates) if on_round is not None else None
        entry = ClockedRound(
            number=number,
            began=began,
            ended=clock.now,
            timings={site: one.timing for site, one in sorted(came.items()) if one.timing is not None},
            vanished=tuple(vanished),
            metrics=dict(measured or {}),
        )
        run.state, run.rounds = loop.state, [*run.rounds, entry]
    return run


def _aged(one: _Training, number: int) -> Update:
    """Return an update as it counts in this round."""
    assert one.update is not None
    return replace(one.update, delta=scaled(one.update.delta, staleness_weight(number - one.round)))
