# SPDX-License-Identifier: Apache-2.0
"""Federated rounds by a simulated clock: twenty hospitals, some of which vanish."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.in_process.clocked_loop import ClockedRun, Workload, check_deadline, federate_clocked
from medflare.in_process.loop import FederationLoop, federate
from medflare.selection.clock import SimulatedClock, SiteProfile, drawn_profiles

SITES = [f"hospital-{i:02d}" for i in range(20)]
WORK = Workload(down=2_000_000, up=1_000_000)
GOAL = torch.linspace(-1, 1, 20, dtype=torch.float64)


class Pull:
    """Goes half the way to a point of its own."""

    def __init__(self, place: int) -> None:
        self.place, self.fits, self.w = place, 0, torch.zeros(1, dtype=torch.float64)

    patient_profiles = None

    def describe(self) -> SiteDescription:
        counts = {"train": 10 + self.place, "val": 1}
        return SiteDescription(backbone=BackboneFacts(name="toy", fingerprint="f0"), examples=counts)

    def initial_shared(self) -> State:
        return {"w": torch.zeros(1, dtype=torch.float64)}

    def load_shared(self, state: State) -> None:
        self.w = state["w"]

    def fit(self, plan: RoundPlan) -> Update:
        self.fits += 1
        hint = plan.hints.importance
        weight = hint.weights.get(SITES[self.place], 1.0) if hint else 1.0
        sums = {"importance.weight": torch.tensor([weight], dtype=torch.float64)}
        return Update(delta={"w": (GOAL[self.place] - self.w) / 2}, examples=10 + self.place, sums=sums)


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=50, seed=3)


def sites(count: int = 20) -> dict[str, Any]:
    return {site: Pull(i) for i, site in enumerate(SITES[:count])}


def profiles(**changed: SiteProfile) -> dict[str, SiteProfile]:
    return drawn_profiles(SITES, 5) | {name.replace("_", "-"): own for name, own in changed.items()}


def error_of(number: int, state: State, updates: Mapping[str, Update]) -> dict[str, float]:
    return {"error": float(state["w"].abs())}


def run(rule: str, settings: dict[str, Any], clock: SimulatedClock, **more: Any) -> ClockedRun:
    given = {"learners": sites(), "rounds": 12, "work": WORK, "on_round": error_of} | more
    return federate_clocked(rule=make_rule(rule, settings), make_plan=plan, clock=clock, **given)


def told(found: ClockedRun) -> str:
    return json.dumps([entry.to_json() for entry in found.rounds])


@pytest.mark.parametrize("rule", ["ddcs", "uniform_selection", "importance_sampling"])
def test_two_runs_agree_to_the_last_digit(rule: str) -> None:
    one, other = (run(rule, {"draws": 5}, SimulatedClock(profiles(), 1)) for _ in range(2))
    assert told(one) == told(other)
    assert torch.equal(one.state["w"], other.state["w"])
    assert told(one) != told(run(rule, {"draws": 5}, SimulatedClock(profiles(), 2)))


def test_a_round_takes_what_its_slowest_site_takes() -> None:
    clock = SimulatedClock(profiles(), 1)
    result = run("uniform_selection", {"draws": 5}, clock)
    assert result.rounds[-1].ended == clock.now
    for entry, following in zip(result.rounds, result.rounds[1:], strict=False):
        assert entry.ended == following.began
    for entry in result.rounds:
        assert entry.ended - entry.began == pytest.approx(max(t.total for t in entry.timings.values()))
        site = next(iter(entry.timings))
        train = 10 + SITES.index(site)
        assert entry.timings[site] == clock.timing(site, entry.number, train, WORK.down, WORK.up)


def test_without_a_choice_of_sites_the_rounds_are_those_of_the_plain_loop() -> None:
    result = run("weighted_mean", {}, SimulatedClock(profiles(), 1))
    assert torch.equal(result.state["w"], federate(sites(), make_rule("weighted_mean", {}), 12, plan)["w"])
    assert all(len(entry.timings) == 20 for entry in result.rounds)


def test_what_a_rule_learns_is_what_the_clock_says() -> None:
    rule, clock = make_rule("ddcs", {"draws": 5, "smoothing": 1.0}), SimulatedClock(profiles(), 1)
    result = federate_clocked(sites(), rule, 12, plan, clock, WORK)
    last = {site: timing for entry in result.rounds for site, timing in entry.timings.items()}
    latencies = rule.report()["latencies"]
    assert set(latencies) == set(last)
    for site, timing in last.items():
        assert (latencies[site]["compute"], latencies[site]["transfer"]) == pytest.approx(timing)


def test_a_site_that_vanishes_gives_nothing_and_counts_as_slow_as_the_round() -> None:
    shaky = SiteProfile(seconds_per_example=0.1, down=100, up=100, reliability=1e-9)
    clock, learners = SimulatedClock(profiles(hospital_07=shaky), 1), sites()
    rule = make_rule("uniform_selection", {"draws": 10})
    result = federate_clocked(learners, rule, 20, plan, clock, WORK, deadline=500.0)
    missed = [entry for entry in result.rounds if "hospital-07" in entry.vanished]
    assert missed
    assert learners["hospital-07"].fits == 0
    assert all(entry.ended == pytest.approx(entry.began + 500) for entry in missed)
    assert rule.report()["latencies"]["hospital-07"]["compute"] == 500.0
    assert rule.report()["ages"]["hospital-07"] == 20


def test_a_site_too_late_for_the_deadline_is_left_out_as_one_that_vanished() -> None:
    slow = SiteProfile(seconds_per_example=1e3, down=100, up=100)
    result = run("weighted_mean", {}, SimulatedClock(profiles(hospital_03=slow), 1), deadline=600.0)
    assert {entry.vanished for entry in result.rounds} == {("hospital-03",)}


@pytest.mark.parametrize("deadline", [math.inf, 500.0])
def test_a_site_whose_update_is_refused_counts_as_slow_as_the_deadline_or_the_slowest(
    deadline: float,
) -> None:
    rule = make_rule("ddcs", {"draws": 60, "smoothing": 1.0})
    add = rule.add

    def picky(site: str, update: Update) -> None:
        if site == "hospital-07":
            raise UpdateError("not finite")
        add(site, update)

    rule.add = picky  # type: ignore[method-assign]
    quick = SiteProfile(seconds_per_example=1e-3, down=100, up=100)
    clock = SimulatedClock(profiles(hospital_07=quick), 1)
    result = federate_clocked(sites(), rule, 1, plan, clock, WORK, deadline)
    timings = result.rounds[0].timings
    seen, slowest = rule.report()["latencies"], max(timing.total for timing in timings.values())
    taken = seen["hospital-07"]["compute"] + seen["hospital-07"]["transfer"]
    assert taken == pytest.approx(deadline if math.isfinite(deadline) else slowest)
    assert rule.report()["ages"]["hospital-07"] == 1
    assert result.rounds[0].vanished == ()
    others = set(timings) - {"hospital-07"}
    assert all(seen[site]["compute"] == pytest.approx(timings[site].compute) for site in others)


def test_where_all_vanish_the_state_stays_and_the_next_round_goes_on() -> None:
    gone = SiteProfile(seconds_per_example=1, down=100, up=100, reliability=0.4)
    clock, rule = SimulatedClock(dict.fromkeys(SITES, gone), 6), make_rule("ddcs", {"draws": 1})
    states: list[State] = []
    result = federate_clocked(
        sites(), rule, 12, plan, clock, WORK, 90.0, lambda number, state, updates: states.append(state)
    )
    lost = [entry.number for entry in result.rounds if not entry.timings]
    assert 0 < len(lost) < 12
    for number in lost:
        before = states[number - 1]["w"] if number else torch.zeros(1, dtype=torch.float64)
        assert torch.equal(states[number]["w"], before)
        assert result.rounds[number].ended == pytest.approx(result.rounds[number].began + 90)


def test_a_lost_round_is_in_the_rules_report_and_makes_everyone_older() -> None:
    rule = make_rule("uniform_selection", {"draws": 4})
    loop = FederationLoop(sites(), rule, plan)
    assert loop.round(0, lambda plan, asked: []) == {}
    assert rule.report()["vanished"] == sorted(rule.report()["drawn"])
    assert rule.report()["ages"] == dict.fromkeys(SITES, 1)


def test_fedcs_keeps_its_deadline_once_it_has_seen_the_sites() -> None:
    clock = SimulatedClock(profiles(), 1)
    typical = sorted(clock.timing(s, 0, 20, WORK.down, WORK.up).total for s in SITES)[10]  # type: ignore[union-attr]
    result = run("fedcs", {"deadline": typical}, clock, deadline=3 * typical)
    first, last = result.rounds[0], result.rounds[-1]
    assert len(first.timings) + len(first.vanished) == 20
    assert 5 < len(last.timings) < 15
    assert last.vanished == ()
    assert last.ended - last.began < 1.5 * typical


def test_the_budget_ends_the_run() -> None:
    result = run("uniform_selection", {"draws": 5}, SimulatedClock(profiles(), 1), rounds=50, budget=400.0)
    assert 1 < len(result.rounds) < 50
    assert result.rounds[-1].began < 400.0 <= result.rounds[-1].ended
    assert all("error" in entry.metrics for entry in result.rounds)


def test_examples_are_counted_as_sites_visit_them() -> None:
    work = Workload(down=1, up=1, batch=8, epochs=3)
    assert work.examples(plan(0), 50) == 150
    assert work.examples(RoundPlan(round=0, rounds=1, fraction=0.5), 50) == 25
    assert work.examples(RoundPlan(round=0, rounds=1, steps=4), 50) == 32
    assert work.examples(RoundPlan(round=0, rounds=1, steps=4), 5) == 20


def test_what_cannot_be_timed_is_said_before_round_1() -> None:
    clock = SimulatedClock(profiles())
    with pytest.raises(ConfigError, match="no latency profile for hospital-99"):
        check_deadline(clock, 60.0, [*SITES, "hospital-99"])
    shaky = SiteProfile(seconds_per_example=1, down=1, up=1, reliability=0.9)
    with pytest.raises(ConfigError, match=r"profiles of hospital-04 let them vanish.*Set a deadline"):
        check_deadline(SimulatedClock(profiles(hospital_04=shaky)), math.inf, SITES)
