# SPDX-License-Identifier: Apache-2.0
"""Sites that are slow, late or gone in rounds of a rule that draws, by the real clock and a simulated one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import fed_quadratic
import pytest
import torch
from fed_clock import ExchangeClock
from fed_harness import Federation, Make, accepted, completed, failed, final, ledger
from fed_learner import ADAPTER
from fed_quadratic import CURVES, QuadraticLearner
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import SamplesClients
from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.federation.flare_messages import read_reply
from medflare.federation.server.run_state import load_state
from medflare.in_process.clocked_loop import Workload, federate_clocked
from medflare.in_process.loop import FederationLoop
from medflare.selection.clock import SimulatedClock, read_profiles
from medflare.wire.compression import message_bytes

FIVE = {"site-4": ((1.0, 1.0), (2.0, 2.0), 25), "site-5": ((0.3, 0.7), (-2.0, 1.0), 15)}
ALL_DRAWN = {"draws": 60}
BY_DATA: dict[str, Any] = {**ALL_DRAWN, "floor": 1.0}
"""Odds that do not follow from what the real clock says."""
REAL = {"deadline": 100.0, "margin": 0.1, "seed": 7, "evaluate_every": 0}


class SleepyLearner(QuadraticLearner):
    """Setting `sleep`: site -> seconds that its training takes."""

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        super().__init__(settings, site, seed)
        self.sleep = float(settings.get("sleep", {}).get(site, 0))

    def fit(self, plan: RoundPlan) -> Update:
        time.sleep(self.sleep)
        return super().fit(plan)


@pytest.fixture
def runs(federation: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Federations over three or five sites with quadratic losses, warm: torch's first step takes seconds."""
    QuadraticLearner({}, "site-1", 0).fit(RoundPlan(round=0, rounds=1))
    for site, (curve, goal, examples) in FIVE.items():
        monkeypatch.setitem(fed_quadratic.CURVES, site, curve)
        monkeypatch.setitem(fed_quadratic.GOALS, site, goal)
        monkeypatch.setitem(fed_quadratic.EXAMPLES, site, examples)

    def make(
        rule: str,
        settings: dict[str, Any],
        sites: int = 3,
        tamper: Any = None,
        sleep: dict[str, float] | None = None,
        **controller: Any,
    ) -> Federation:
        return federation(
            learner=SleepyLearner,
            settings={"sleep": sleep or {}},
            sites=tuple(sorted(CURVES))[:sites],
            rule={"rule": rule, "rule_settings": settings},
            controller={"num_rounds": 3, **REAL, **controller},
            tamper=tamper,
        )

    return make


def late(wait: Callable[[str], None], *when: tuple[str, str, int]) -> Callable[[str, str, Any], None]:
    """Holds back a site's answers: (site, task, which of them, counted from 0; -1 for all)."""
    count: dict[tuple[str, str], int] = {}

    def tamper(site: str, task: str, reply: Any) -> None:
        number = count[site, task] = count.get((site, task), -1) + 1
        if {(site, task, number), (site, task, -1)} & set(when):
            wait(site)

    return tamper


def sleeping(seconds: float) -> Callable[[str], None]:
    """A wait by the real clock."""
    return lambda site: time.sleep(seconds)


def in_one_process(
    sites: int, rounds: int, gone: dict[int, Sequence[str]], least: int = 1, **settings: Any
) -> Tensor:
    """The same rounds without FLARE; sites that are gone in a round are asked in the next again."""
    learners = {site: QuadraticLearner({}, site, 0) for site in sorted(CURVES)[:sites]}
    rule = make_rule("ddcs", settings)
    rule.sample_clients = partial(rule.sample_clients, min_clients=least)  # type: ignore[method-assign]
    loop = FederationLoop(learners, rule, lambda r: RoundPlan(round=r, rounds=rounds, seed=7))
    for number in range(rounds):
        missing = gone.get(number, ())
        loop.round(number, lambda plan, asked, missing=missing: [s for s in asked if s not in missing])
    return loop.state[ADAPTER]


# ---- the real clock ----------------------------------------------------------------------------------------


def test_computing_is_what_the_site_says_and_transfer_is_the_rest(runs) -> None:
    slow_line, said = late(sleeping(0.8), ("site-3", "fit", -1)), dict[tuple[int, str], float]()

    def tamper(site: str, task: str, reply: Any) -> None:
        if task == "fit":
            answer = read_reply(reply)
            said[answer.round, site] = answer.facts["seconds"]
        slow_line(site, task, reply)

    record = completed(runs("ddcs", ALL_DRAWN, tamper=tamper, sleep={"site-2": 0.8}, num_rounds=2))
    for entry in record.rounds:
        for site, timing in entry.timings.items():
            assert timing["compute"] == pytest.approx(said[entry.round, site], abs=0.002)
            assert timing["compute"] + timing["transfer"] <= entry.seconds + 0.002
        assert entry.timings["site-2"]["compute"] >= 0.8
        assert entry.timings["site-3"]["transfer"] >= 0.8
        assert entry.simulated_seconds is None
    timings, latencies = record.rounds[0].timings, record.rounds[0].rule["latencies"]
    assert {s: latencies[s]["compute"] for s in latencies} == {s: timings[s]["compute"] for s in timings}


def test_the_steps_of_a_secure_sum_are_no_transfer(runs) -> None:
    steps = late(sleeping(0.5), *[("site-1", step, -1) for step in ("keys", "shares", "confirm", "reveal")])
    record = completed(runs("ddcs", ALL_DRAWN, tamper=steps, protection="masking", num_rounds=2))
    for entry in record.rounds:
        assert sum(entry.timings["site-1"].values()) <= entry.seconds - 2.0 + 0.002


def test_one_of_the_drawn_vanishes_and_the_round_goes_on_without_it(runs, clock: ExchangeClock) -> None:
    run = runs("ddcs", BY_DATA, tamper=late(clock.miss, ("site-2", "fit", 0)))
    record = completed(run)
    first = record.rounds[0]
    assert first.rule["vanished"] == ["site-2"]
    assert sorted(first.accepted) == ["site-1", "site-3"]
    assert "no reply within the deadline" in first.absent["site-2"]
    assert first.rule["latencies"]["site-2"]["compute"] >= REAL["deadline"]
    assert first.rule["ages"] == {"site-1": 0, "site-2": 1, "site-3": 0}
    assert "site-2" in record.rounds[1].accepted
    assert record.rounds[1].rule["odds"]["site-2"] >= first.rule["odds"]["site-2"]
    assert torch.equal(final(run)[ADAPTER], in_one_process(3, 3, {0: ["site-2"]}, **BY_DATA))


def test_where_all_vanish_nothing_changes_and_they_are_asked_again(runs, clock: ExchangeClock) -> None:
    settings: dict[str, Any] = {**ALL_DRAWN, "age_bonus": 0.0}
    everybody = [(f"site-{i}", "fit", 0) for i in (1, 2, 3)]
    run = runs("ddcs", settings, tamper=late(clock.miss, *everybody), num_rounds=2)
    record = completed(run)
    assert accepted(record) == [[], ["site-1", "site-2", "site-3"]]
    assert record.rounds[0].rule["vanished"] == ["site-1", "site-2", "site-3"]
    plan = RoundPlan(round=1, rounds=2, seed=7)
    loop = FederationLoop(
        {s: QuadraticLearner({}, s, 0) for s in sorted(CURVES)[:3]},
        make_rule("ddcs", settings),
        lambda r: plan,
    )
    loop.round(1)
    assert torch.equal(final(run)[ADAPTER], loop.state[ADAPTER])


def test_too_many_lost_rounds_in_a_row_end_the_run_with_the_last_good_state(
    runs, clock: ExchangeClock
) -> None:
    gone = late(clock.miss, *[(f"site-{i}", "fit", n) for i in (1, 2, 3) for n in (1, 2, 3)])
    run = runs("ddcs", ALL_DRAWN, tamper=gone, max_lost_rounds=0)
    record = failed(run, "round 2: 0 accepted, 1 needed. site-1, site-2, site-3: no reply within")
    assert load_state(run.state).exchanges_done == 1
    assert "final" in record.artefacts


def test_a_job_may_ask_for_more_of_the_drawn_sites(runs, clock: ExchangeClock) -> None:
    record = runs("ddcs", ALL_DRAWN, tamper=late(clock.miss, ("site-2", "fit", 0)), min_responses=3).run()
    lost = record.rounds[0]
    assert lost.accepted == {}
    assert "the round was lost" in lost.absent["site-1"]
    assert "no reply within" in lost.absent["site-2"]


def test_a_masked_sum_of_those_who_are_left_is_the_step_of_those_who_are_left(
    runs, clock: ExchangeClock
) -> None:
    run = runs("ddcs", BY_DATA, 5, tamper=late(clock.miss, ("site-4", "fit", 0)), protection="masking")
    record = completed(run)
    first = record.rounds[0].rule
    assert first["vanished"] == ["site-4"]
    assert first["ages"]["site-4"] == 1
    assert first["latencies"]["site-4"]["compute"] >= REAL["deadline"]
    expected = in_one_process(5, 3, {0: ["site-4"]}, 3, **BY_DATA)
    assert torch.allclose(final(run)[ADAPTER], expected, atol=1e-4)


def test_a_site_that_is_gone_before_masks_are_agreed_on_lapses_too(runs, clock: ExchangeClock) -> None:
    run = runs("ddcs", ALL_DRAWN, 5, tamper=late(clock.miss, ("site-4", "keys", 0)), protection="masking")
    record = completed(run)
    first = record.rounds[0]
    assert sorted(first.accepted) == ["site-1", "site-2", "site-3", "site-5"]
    assert first.absent["site-4"].startswith("'keys' of the secure sum: no reply within")
    assert first.rule["vanished"] == ["site-4"]
    assert first.rule["latencies"]["site-4"]["compute"] >= REAL["deadline"]


def test_a_masked_round_waits_for_as_many_as_hide_each_other_whatever_the_job_is_content_with(runs) -> None:
    slow = late(sleeping(1.5), *[(f"site-{i}", "fit", 0) for i in (2, 3, 4)])

    def tamper(site: str, task: str, reply: Any) -> None:
        if task in ("shares", "fit"):
            run.change(straggler_timeout=0.5 if task == "shares" else 60.0)
        slow(site, task, reply)

    run = runs("ddcs", ALL_DRAWN, 4, tamper=tamper, protection="masking", min_responses=1, num_rounds=1)
    record = completed(run)
    assert len(record.rounds[0].accepted) >= 3, record.rounds[0].absent


@pytest.mark.parametrize("step", ["keys", "fit"])
def test_a_masked_sum_over_two_is_never_made_and_the_round_is_lost(
    runs, clock: ExchangeClock, step: str
) -> None:
    run = runs(
        "ddcs", ALL_DRAWN, 3, tamper=late(clock.miss, ("site-2", step, 0)), protection="masking", num_rounds=1
    )
    record = run.run()
    assert record.rounds[0].accepted == {}
    assert record.rounds[0].rule["vanished"] == ["site-1", "site-2", "site-3"]
    assert torch.equal(final(run)[ADAPTER], torch.zeros(1, 2))


# ---- a simulated clock -------------------------------------------------------------------------------------

PROFILES = {
    "site-1": {"seconds_per_example": 1.0, "down": 1e-3, "up": 1e-3, "jitter": 0.1},
    "site-2": {"seconds_per_example": 4.0, "down": 1e-3, "up": 1e-3, "jitter": 0.1, "reliability": 0.6},
    "site-3": {"seconds_per_example": 2.0, "down": 1e-3, "up": 1e-3, "jitter": 0.1},
}
CLOCK = {"latency_profiles": PROFILES, "simulated_deadline": 500.0, "num_rounds": 8, "deadline": 20.0}


def clocked(
    rule: str, settings: dict[str, Any], least: int = 1, profiles: Mapping[str, Any] = PROFILES
) -> Any:
    """What a run with these profiles must equal."""
    size = message_bytes(QuadraticLearner({}, "site-1", 0).shared_spec(), "float32")
    aggregation_rule = make_rule(rule, settings)
    if aggregation_rule.capability(SamplesClients):
        aggregation_rule.sample_clients = partial(aggregation_rule.sample_clients, min_clients=least)  # type: ignore[method-assign]
    return federate_clocked(
        {site: QuadraticLearner({}, site, 0) for site in PROFILES},
        aggregation_rule,
        8,
        lambda r: RoundPlan(round=r, rounds=8, seed=7),
        SimulatedClock(read_profiles(profiles), 7),
        Workload(down=size, up=size),
        500.0,
    )


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("ddcs", {"draws": 3}),
        ("uniform_selection", {"draws": 2}),
        ("stratified_sampling", {"draws": 2}),
        ("fedcs", {"deadline": 75.0}),
        ("weighted_mean", {}),
    ],
)
def test_simulated_seconds_in_flare_are_those_of_one_process(runs, rule: str, settings: Any) -> None:
    run, expected = runs(rule, settings, **CLOCK), clocked(rule, settings)
    record = completed(run)
    assert torch.equal(final(run)[ADAPTER], expected.state[ADAPTER])
    assert [entry.simulated_seconds for entry in record.rounds] == [one.ended for one in expected.rounds]
    for entry, one in zip(record.rounds, expected.rounds, strict=True):
        assert entry.timings == {site: timing._asdict() for site, timing in one.timings.items()}
        assert entry.seconds < 20


def test_under_masks_odds_by_latency_are_those_of_one_process_too(runs) -> None:
    steady: dict[str, Any] = {s: {**p, "reliability": 1.0} for s, p in PROFILES.items()}
    run = runs("ddcs", {"draws": 5}, protection="masking", **CLOCK | {"latency_profiles": steady})
    record, expected = run.run(), clocked("ddcs", {"draws": 5}, 3, steady)
    assert record.status == "completed", record.reason
    assert torch.allclose(final(run)[ADAPTER], expected.state[ADAPTER], atol=1e-4)
    odds = [entry.rule["odds"] for entry in record.rounds]
    assert max(odds[1].values()) > 1.3 * max(odds[0].values())


def test_a_site_that_vanishes_by_its_profile_is_not_asked_and_lapses(runs) -> None:
    run, expected = runs("ddcs", {"draws": 3}, **CLOCK), clocked("ddcs", {"draws": 3})
    record = run.run()
    missed = [one.number for one in expected.rounds if "site-2" in one.vanished]
    assert missed
    for number in missed:
        assert record.rounds[number].absent["site-2"] == "vanished (simulated)"
        assert "site-2" in record.rounds[number].rule["vanished"]
    assert not {line.round for line in ledger(run, "site-2", "fit")} & set(missed)


def test_a_site_too_slow_for_the_simulated_deadline_is_named_with_its_seconds(runs) -> None:
    record = runs("weighted_mean", {}, **CLOCK | {"simulated_deadline": 60.0, "num_rounds": 1}).run()
    assert "site-1" in record.rounds[0].accepted
    assert record.rounds[0].absent["site-2"].startswith(("too late (simulated): ", "vanished (simulated)"))
    assert record.rounds[0].simulated_seconds == 60.0


def test_where_no_site_fits_into_fedcs_deadline_the_fastest_trains_and_the_record_says_so(runs) -> None:
    record = completed(runs("fedcs", {"deadline": 5.0}, **CLOCK | {"num_rounds": 4}))
    assert [list(entry.accepted) for entry in record.rounds[1:]] == [["site-3"]] * 3
    assert "over" not in record.rounds[0].rule
    assert record.rounds[1].rule["over"].startswith("0 of 3 sites fit into the deadline of 5 s")


def test_profiles_that_cannot_be_used_are_refused_before_anybody_trains(runs) -> None:
    with pytest.raises(ValueError, match="site 'site-1': unknown keys speed"):
        runs("ddcs", {}, latency_profiles={"site-1": {"speed": 1.0}})
    two = {site: PROFILES[site] for site in ("site-1", "site-2")}
    run = runs("ddcs", {}, **CLOCK | {"latency_profiles": two})
    record = failed(run, "no latency profile for site-3")
    assert record.rounds == []


def test_under_masks_a_round_with_fewer_than_three_by_the_profiles_is_lost(runs) -> None:
    run = runs("ddcs", ALL_DRAWN, protection="masking", **CLOCK)
    record = completed(run)
    expected = clocked("ddcs", ALL_DRAWN, least=3)
    lost = [one.number for one in expected.rounds if one.vanished]
    assert lost
    assert [entry.round for entry in record.rounds if not entry.accepted] == lost


def test_the_state_of_a_lost_round_is_the_one_before(runs) -> None:
    shaky: dict[str, Any] = {s: {**p, "reliability": 0.3} for s, p in PROFILES.items()}
    run = runs("uniform_selection", {"draws": 1}, **CLOCK | {"latency_profiles": shaky, "max_lost_rounds": 8})
    record = completed(run)
    lost = [entry for entry in record.rounds if not entry.accepted]
    assert 0 < len(lost) < 8
    assert all(entry.rule["vanished"] for entry in lost)
    assert all("update_norm" not in entry.checks for entry in lost)
