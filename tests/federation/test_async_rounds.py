# SPDX-License-Identifier: Apache-2.0
"""Mode `async`: rounds that end with a few updates, of whatever state, equal those of one process."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from fed_harness import SITES, Federation, accepted, completed, failed, final
from fed_learner import ADAPTER
from fed_quadratic import EXAMPLES, QuadraticLearner
from fed_toy import ToyLearner
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from test_waiting import REQUEST, Courier

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.federation.server.exchange import Exchange, WaitLimits
from medflare.in_process.buffered_loop import federate_buffered
from medflare.in_process.clocked_loop import ClockedRun, Workload
from medflare.protocol.messages import FINISH, FIT
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job
from medflare.selection.clock import SimulatedClock, read_profiles

SPEEDS = {"site-1": 0.1, "site-2": 0.25, "site-3": 1.2}
"""Seconds an example: site-3's updates are rounds old."""
ROUNDS = 7


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=ROUNDS, seed=7)


def in_one_process(buffer: int, rule: str = "weighted_mean") -> tuple[ClockedRun, list[dict[str, int]]]:
    """Return the run, and round by round each counted site's age."""
    learners = {site: QuadraticLearner({}, site, 0) for site in SITES}
    profiles = {s: {"seconds_per_example": v, "down": 1e3, "up": 1e3} for s, v in SPEEDS.items()}
    clock, work = SimulatedClock(read_profiles(profiles), 0), Workload(down=8, up=8)
    run = federate_buffered(learners, make_rule(rule, {}), ROUNDS, plan, clock, work, buffer)
    asked, ages = dict.fromkeys(SITES, 0), list[dict[str, int]]()
    for entry in run.rounds:
        ages.append({site: entry.number - asked[site] for site in entry.timings})
        asked |= dict.fromkeys(entry.timings, entry.number + 1)
    return run, ages


class Conductor:
    """Lets each update of a run go only once the round has begun in which it shall count.

    An update that no round counts goes when the final test has begun.

    Args:
        ages: of each round the sites that it counts, and how many rounds old their updates are.
    """

    def __init__(self, ages: list[dict[str, int]]) -> None:
        self.counted = {(site, r - age): r for r, aged in enumerate(ages) for site, age in aged.items()}
        self.begun = [threading.Event() for _ in range(ROUNDS + 1)]

    def asked(self, site: str, task: str, message: Shareable) -> None:
        if task in (FIT, FINISH):
            self.begun[message.get_header("current_round") if task == FIT else ROUNDS].set()

    def answered(self, site: str, task: str, answer: Shareable) -> None:
        if task == FIT:
            number = answer.get_header("current_round")
            assert self.begun[self.counted.get((site, number), ROUNDS)].wait(60)


def conducted(
    federation: Any, ages: list[dict[str, int]], rule: str, learner: Any = QuadraticLearner, **controller: Any
) -> Federation:
    conductor, settings = Conductor(ages), controller.pop("settings", {})
    given = {"mode": "async", "num_rounds": ROUNDS, "seed": 7, "evaluate_every": 0}
    return federation(
        learner=learner,
        settings=settings,
        rule={"rule": rule},
        controller={**given, "uplink": "float32", "downlink": "float32", **controller},
        mislead=conductor.asked,
        tamper=conductor.answered,
    )


@pytest.mark.parametrize(
    ("buffer", "rule"), [(1, "weighted_mean"), (2, "weighted_mean"), (3, "weighted_mean"), (2, "median")]
)
def test_rounds_in_flare_are_those_of_one_process(federation, buffer: int, rule: str) -> None:
    expected, ages = in_one_process(buffer, rule)
    run = conducted(federation, ages, rule, buffer=buffer)
    record = completed(run)
    for entry, aged in zip(record.rounds, ages, strict=True):
        assert entry.accepted == {site: EXAMPLES[site] for site in sorted(aged)}
        assert entry.late == {site: age for site, age in aged.items() if age}
    assert torch.equal(final(run)[ADAPTER], expected.state[ADAPTER])
    assert buffer == 3 or max(max(aged.values()) for aged in ages) >= 2


def test_a_refused_update_costs_its_site_and_the_others_are_waited_for(federation) -> None:
    ages = [{"site-1": 0}, {"site-2": 1}, {"site-3": 2}]
    broken = {"sites": {"site-1": {"bad": {"1": "nan"}}}}
    run = conducted(federation, ages, "weighted_mean", ToyLearner, buffer=1, num_rounds=3, settings=broken)
    record = completed(run)
    assert accepted(record) == [["site-1"], ["site-2"], ["site-3"]]


def test_where_nobody_can_be_asked_the_updates_of_earlier_rounds_are_waited_for() -> None:
    looks = iter([(0, 2), (1, 1), (2, 0)])
    exchange = Exchange(REQUEST, lambda site, _: None, lambda site: {})
    limits = WaitLimits(
        quorum=1,
        min_responses=2,
        deadline=60.0,
        margin=1.0,
        straggler_timeout=0.0,
        counting=lambda: next(looks),
    )
    outcome = exchange.run(Courier({}), [], limits, FLContext(), Signal())
    assert (outcome.facts, outcome.absent, list(looks)) == ({}, {}, [])


def test_rounds_without_any_update_are_lost_and_too_many_end_the_run(federation) -> None:
    every = {str(number): "nan" for number in range(ROUNDS)}
    broken = {"sites": {site: {"bad": every} for site in SITES}}
    run = federation(
        controller={"mode": "async", "num_rounds": ROUNDS, "max_lost_rounds": 1}, settings=broken
    )
    record = failed(run, "round 2: 0 accepted, 1 needed")
    assert [entry.accepted for entry in record.rounds] == [{}, {}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"controller": {"protection": "masking"}}, "only the updates of one round and one state make a sum"),
        ({"aggregation": {"rule": "ddcs"}}, "rule 'ddcs' samples who trains"),
        ({"controller": {"late": "next_round"}}, "; late would say otherwise"),
        (
            {"controller": {"min_responses": 2, "mandatory_sites": ["a"]}},
            "; min_responses, mandatory_sites would say otherwise. Leave them out",
        ),
        ({"workflow": "temporal"}, "an update of one visit cannot count for the next one"),
    ],
)
def test_what_cannot_go_together_is_refused_before_the_run(changes: dict[str, Any], message: str) -> None:
    given = {**changes, "controller": {"mode": "async", **changes.get("controller", {})}}
    with pytest.raises(ConfigError, match=message):
        check_job(Job(title="job", method="fed_medlora", **given))
