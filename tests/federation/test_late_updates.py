# SPDX-License-Identifier: Apache-2.0
"""Stragglers: what becomes of an update that comes after its round, who is waited for, and how long."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from fed_harness import SITES, Federation, accepted, completed, failed, final
from fed_learner import ADAPTER
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from test_waiting import FAILED, NOTHING, REQUEST, Courier

from medflare.core.errors import ConfigError
from medflare.egress.failures import Failure, FailureCode
from medflare.federation.flare_messages import failure_reply, read_reply, reply
from medflare.federation.server.exchange import Exchange, WaitLimits
from medflare.federation.server.late_updates import LateUpdates
from medflare.federation.server.roster import Roster
from medflare.protocol.messages import EVALUATE, FIT, Reply
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job

ALL = list(SITES)


@dataclass
class Straggler:
    """A run whose site-3 answers round 1 only after round 2 has begun, and round 2 waits for that answer.

    Attributes:
        base: the state that round 2 was sent. deltas: (site, round) -> the update that site sent.
        change: what becomes of the late reply on its way, if anything.
    """

    monkeypatch: pytest.MonkeyPatch
    change: Any = None
    base: dict[str, torch.Tensor] = field(default_factory=dict)
    deltas: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun, self.came = threading.Event(), threading.Event()
        receive, came = LateUpdates.receive, self.came

        def received(late: LateUpdates, site: str, exchange: int, answer: Reply) -> str | None:
            try:
                return receive(late, site, exchange, answer)
            finally:
                came.set()

        self.monkeypatch.setattr(LateUpdates, "receive", received)

    def run(self, federation: Any, **controller: Any) -> Federation:
        given = {"num_rounds": 3, "min_responses": 2, "straggler_timeout": 0.1} | controller
        self.federation = federation(controller=given, mislead=self.asked, tamper=self.answered)
        return self.federation

    def asked(self, site: str, task: str, message: Shareable) -> None:
        if task == FIT and message.get_header("current_round") == 1:
            self.base = {name: value.clone() for name, value in from_shareable(message).data.items()}
            self.federation.change(straggler_timeout=60.0)
            self.begun.set()

    def answered(self, site: str, task: str, answer: Shareable) -> Shareable | None:
        if task != FIT:
            return None
        number = answer.get_header("current_round")
        self.deltas[site, number] = read_reply(answer).tensors[ADAPTER].clone()
        if (site, number) == ("site-3", 0):
            self.begun.wait(60)
            return self.change(answer) if self.change else None
        if number == 1:
            self.came.wait(60)
        return None


@pytest.fixture
def straggler(monkeypatch: pytest.MonkeyPatch) -> Straggler:
    return Straggler(monkeypatch)


@pytest.mark.fault(
    "a site answers after its round (late={late})",
    phase="sending",
    result="its update counts in the next round",
)
@pytest.mark.parametrize(("late", "share"), [("next_round", 1.0), ("staleness_weighted", 0.5**0.5)])
def test_a_late_update_counts_in_the_next_round(federation, straggler, late: str, share: float) -> None:
    """All of its change, or after one round 1 / sqrt(2) of it."""
    run = straggler.run(federation, late=late, num_rounds=2)
    record = completed(run)
    first, second = record.rounds
    assert accepted(record) == [["site-1", "site-2"], ALL]
    assert first.absent["site-3"].startswith("no reply within 0.1 s of the quorum")
    assert (first.late, second.late, second.absent) == ({}, {"site-3": 1}, {})
    assert second.accepted == {"site-1": 16, "site-2": 20, "site-3": 24}
    counted = {("site-1", 1): 1.0, ("site-2", 1): 1.0, ("site-3", 0): share}
    mean = sum(second.accepted[one[0]] * part * straggler.deltas[one] for one, part in counted.items())
    expected = straggler.base[ADAPTER] + mean / sum(second.accepted.values())
    torch.testing.assert_close(final(run)[ADAPTER], expected, rtol=0, atol=1e-6)


def test_a_site_is_asked_again_once_its_late_update_has_come(federation, straggler) -> None:
    record = completed(straggler.run(federation, late="next_round", suspend_rounds=5))
    assert accepted(record) == [["site-1", "site-2"], ALL, ALL]
    assert [entry.late for entry in record.rounds] == [{}, {"site-3": 1}, {}]


@pytest.mark.fault(
    "a site answers after its round (late=discard)",
    phase="sending",
    result="refused by name; back in the next round",
)
def test_without_the_setting_a_late_update_is_lost_and_its_site_is_back_in_the_next_round(
    federation, straggler
) -> None:
    """FLARE's client throws the update away, and asks for the next task."""
    run = straggler.run(federation, suspend_rounds=5)
    rejoin = Roster.rejoin

    def rejoined(roster: Roster, site: str) -> None:
        rejoin(roster, site)
        if site == "site-3" and straggler.begun.is_set():
            straggler.came.set()

    straggler.monkeypatch.setattr(Roster, "rejoin", rejoined)
    record = completed(run)
    assert accepted(record) == [["site-1", "site-2"], ["site-1", "site-2"], ALL]
    assert record.rounds[1].absent["site-3"].startswith("suspended")


def _other_round(answer: Shareable) -> Shareable:
    dxo = from_shareable(answer)
    dxo.meta = {**dxo.meta, "medflare_reply": {**dxo.meta["medflare_reply"], "round": 7}}
    return dxo.to_shareable()


def _not_finite(answer: Shareable) -> Shareable:
    dxo = from_shareable(answer)
    dxo.data = {name: value + float("nan") for name, value in dxo.data.items()}
    return dxo.to_shareable()


def _heavy(answer: Shareable) -> Shareable:
    dxo = from_shareable(answer)
    words = dxo.meta["medflare_reply"]
    dxo.meta = {**dxo.meta, "medflare_reply": {**words, "facts": {**words["facts"], "examples": 10**6}}}
    return dxo.to_shareable()


def _of_no_form(answer: Shareable) -> Shareable:
    dxo = from_shareable(answer)
    dxo.meta = {**dxo.meta, "medflare_reply": {"facts": ["nothing"]}}
    return dxo.to_shareable()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_round, "still training since round 1"),
        (_not_finite, "late update: .*not finite"),
        (_heavy, "late update: weight 1000000"),
        (_of_no_form, "still training since round 1"),
        (lambda _: failure_reply(Failure(FailureCode.DEADLINE, ""), 0), "still training since round 1"),
    ],
    ids=["another round", "not finite", "too heavy", "unreadable", "a failure"],
)
def test_a_hostile_late_reply_costs_its_site_and_nobody_else(
    federation, straggler, change: Any, reason: str
) -> None:
    straggler.change = change
    run = straggler.run(federation, late="next_round", num_rounds=2)
    record = completed(run)
    second = record.rounds[1]
    assert (sorted(second.accepted), second.late) == (["site-1", "site-2"], {})
    assert re.match(reason, second.absent["site-3"]), second.absent
    mean = sum(weight * straggler.deltas[site, 1] for site, weight in second.accepted.items())
    expected = straggler.base[ADAPTER] + mean / sum(second.accepted.values())
    torch.testing.assert_close(final(run)[ADAPTER], expected, rtol=0, atol=1e-6)


def test_only_the_update_that_is_waited_for_is_kept_and_only_once() -> None:
    late, ended = LateUpdates("next_round", lambda site: False), list[int]()
    answer = Reply(0, {"metrics": {}, "seconds": 0.0, "examples": 4}, {})
    nobody = "nobody waits for it"
    assert late.receive("site-1", 0, answer) == nobody
    late.begin(0)
    late.expect({"site-1": 60.0, "site-3": 60.0}, 0, lambda: ended.append(0))
    assert late.receive("site-2", 0, answer) == nobody
    assert "of round 2, and round 1" in str(late.receive("site-3", 0, replace(answer, round=1)))
    assert late.receive("site-1", 0, answer) is None
    assert late.receive("site-1", 0, answer) == nobody, "a second time"
    assert late.busy() == {"site-1": 0}
    assert late.take() == {"site-1": (0, answer)}
    assert (late.take(), late.busy(), ended) == ({}, {}, [])
    assert (late.give_up(), ended) == ({}, [0])


def test_what_comes_between_the_end_of_an_exchange_and_its_record_is_kept() -> None:
    late, ended = LateUpdates("next_round", lambda site: False), list[int]()
    answer = Reply(3, {"metrics": {}, "seconds": 0.0, "examples": 4}, {})
    late.begin(3)
    assert late.receive("site-1", 3, answer) is None
    late.expect({"site-1": 60.0}, 3, lambda: ended.append(3))
    assert (late.take(), late.busy(), ended) == ({"site-1": (3, answer)}, {}, [3])


def test_who_is_gone_or_passes_the_deadline_is_expected_no_longer() -> None:
    gone, ended = set[str](), list[int]()
    late = LateUpdates("staleness_weighted", gone.__contains__)
    late.expect({"site-1": 0.0, "site-2": 600.0, "site-3": 600.0}, 2, lambda: ended.append(2))
    gone.add("site-2")
    reasons = late.give_up()
    assert reasons["site-2"] == "disconnected"
    assert "within the deadline" in reasons["site-1"]
    assert (late.busy(), ended) == ({"site-3": 2}, [])
    late.close()
    assert (late.busy(), ended) == ({}, [2])
    assert [late.weight(age) for age in (0, 1, 3)] == [1.0, pytest.approx(0.5**0.5), 0.5]


def test_a_mandatory_site_is_waited_for_whoever_else_is_there(federation) -> None:
    def slow(site: str, task: str, message: Shareable) -> None:
        if (site, task) == ("site-2", FIT):
            time.sleep(0.6)

    waiting = {"min_responses": 1, "straggler_timeout": 0.0, "num_rounds": 1}
    record = completed(federation(controller=waiting | {"mandatory_sites": ["site-2"]}, mislead=slow))
    assert "site-2" in record.rounds[0].accepted


def test_a_round_without_a_mandatory_site_fails_and_names_it(federation) -> None:
    broken = {"sites": {"site-2": {"bad": {"0": "nan"}}}}
    run = federation(controller={"min_responses": 1, "mandatory_sites": ["site-2"]}, settings=broken)
    record = failed(run, "round 1: ", "1 needed, site-2 among them", "site-2: ")
    assert record.rounds[0].accepted.keys() <= {"site-1", "site-3"}


def test_a_mandatory_site_that_fails_ends_the_wait_of_its_exchange() -> None:
    answers = {"site-1": FAILED, "site-2": reply(REQUEST, NOTHING, {})}
    exchange = Exchange(REQUEST, lambda site, _: None, lambda site: {})
    limits = WaitLimits(
        quorum=1, deadline=60.0, margin=1.0, straggler_timeout=60.0, mandatory=frozenset({"site-1"})
    )
    started = time.monotonic()
    outcome = exchange.run(Silent(answers), ALL, limits, FLContext(), Signal())
    assert outcome.absent["site-3"] == "given up: site-1, which the job names as mandatory, was lost"
    assert time.monotonic() - started < 30


class Silent(Courier):
    """Hands on the answers there are; the other sites never answer."""

    def broadcast(self, task: Any, fl_ctx: FLContext, targets: list[str], min_responses: int) -> None:
        super().broadcast(task, fl_ctx, [site for site in targets if site in self.answers], min_responses)


def test_stragglers_have_a_share_of_the_time_that_the_round_took() -> None:
    limits = WaitLimits(quorum=1, deadline=60.0, margin=1.0, straggler_timeout=7.0, share=0.5)
    assert limits.patience(True, 30.0) == 15.0
    assert limits.patience(False, 30.0) == 7.0, "one that passed a deadline before has no share"
    assert replace(limits, share=None).patience(True, 30.0) == 7.0


def test_a_share_ends_the_wait_where_the_timeout_would_go_on(federation) -> None:
    over = threading.Event()

    def silent(site: str, task: str, answer: Shareable) -> None:
        if (site, task) == ("site-3", FIT):
            over.wait(60)
        elif task == EVALUATE:
            over.set()

    given = {"min_responses": 2, "straggler_timeout": 600.0, "straggler_share": 0.01, "num_rounds": 1}
    run = federation(controller=given, tamper=silent)
    started = time.monotonic()
    record = completed(run)
    assert re.match(r"no reply within \S+ s of the quorum", record.rounds[0].absent["site-3"])
    assert time.monotonic() - started < 60


@pytest.mark.fault(
    "a site is disconnected and comes back", phase="between rounds", result="takes part at once"
)
def test_a_site_that_is_connected_again_takes_part_at_once(federation) -> None:
    run = federation()
    run.run()
    roster = run.flow.roster
    roster.suspend("site-2", 0, "disconnected")
    assert "site-2" not in roster.eligible(1)
    context = FLContext()
    context.set_prop(FLContextKey.RECONNECTED_CLIENT_NAME, "site-2")
    run.flow.handle_event(EventType.CLIENT_RECONNECTED, context)
    assert roster.eligible(1) == ALL


SAMPLING = {"rule": "ddcs", "rule_settings": {"draws": 2}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"controller": {"late": "next_round"}, "aggregation": SAMPLING}, "samples its clients"),
        ({"controller": {"mandatory_sites": ["a"]}, "aggregation": SAMPLING}, "samples who trains"),
        (
            {"controller": {"late": "next_round", "visits": 2}, "workflow": "temporal"},
            "an update of one visit cannot count for the next one",
        ),
    ],
)
def test_what_cannot_go_together_is_refused_before_the_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_job(Job(title="job", method="fed_medlora", **changes))
