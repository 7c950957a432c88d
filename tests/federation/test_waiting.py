# SPDX-License-Identifier: Apache-2.0
"""Whom the server waits for: in a round with a grace, else for all who kept the deadline before."""

from __future__ import annotations

import threading
import time
from typing import Any

from fed_harness import SITES, accepted, completed
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from medflare.egress.failures import Failure, FailureCode
from medflare.federation.flare_messages import failure_reply, reply
from medflare.federation.server.exchange import Exchange, WaitLimits
from medflare.protocol.messages import EVALUATE, FINISH, FIT, PREPARE, Reply, Request

ALL = list(SITES)
REQUEST = Request(
    task=EVALUATE, run_id="r", round=0, roster=ALL, deadline=60.0, uplink="float32", downlink="float32"
)
FAILED, OVERDUE = (
    failure_reply(Failure(code, ""), 0) for code in (FailureCode.UNEXPECTED, FailureCode.DEADLINE)
)
NOTHING = {"metrics": {}, "seconds": 0.0}
TWO_OF_THREE = {"min_responses": 2}


def test_a_site_that_opens_its_model_late_is_in_the_run(federation) -> None:
    run = federation(controller=TWO_OF_THREE | {"straggler_timeout": 0.1})

    def late(site: str, task: str, _: Any) -> None:
        if (site, task) == ("site-3", PREPARE):
            time.sleep(1.0)
            run.change(straggler_timeout=60.0)

    run.tamper = late
    record = completed(run)
    assert accepted(record) == [ALL, ALL]


def test_a_large_hospitals_long_tests_are_waited_for(federation) -> None:
    """Whoever is first has few studies; the others are not given up for that."""
    large = {"sites": {"site-3": {"slow": {"val": 0.5, "test": 0.5}}}}
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 1}, settings=large)

    def soon(site: str, task: str, _: Any) -> None:
        if task == FIT:
            run.change(straggler_timeout=0.1)

    run.tamper = soon
    record = completed(run)
    assert all("val_loss" in record.rounds[0].metrics[site] for site in ALL)
    assert "val_loss" in record.rounds[0].mean
    assert sorted(item.site for item in record.evaluations) == ALL
    assert record.reason == ""


def test_a_suspended_site_gets_its_final_test(federation) -> None:
    run = federation(
        controller=TWO_OF_THREE | {"num_rounds": 1, "suspend_rounds": 5, "straggler_timeout": 0.1}
    )
    over = threading.Event()

    def silent(site: str, task: str, _: Any) -> None:
        if (site, task) == ("site-2", FIT):
            over.wait(60)
        elif task == EVALUATE:
            over.set()

    run.tamper = silent
    record = completed(run)
    assert sorted(record.rounds[0].accepted) == ["site-1", "site-3"]
    assert sorted(item.site for item in record.evaluations) == ALL


def test_a_site_that_passed_a_deadline_is_not_waited_for_once_more(federation, clock) -> None:
    """Nor if another fails meanwhile."""
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 1})
    over = threading.Event()

    def silent(site: str, task: str, _: Any) -> Any:
        if (site, task) == ("site-3", EVALUATE):
            clock.gone = {site}
            over.wait(60)
        elif task == EVALUATE:
            run.change(straggler_timeout=0.1)
        elif task == FINISH:
            clock.gone = set()
        return FAILED if (site, task) == ("site-2", FINISH) else None

    run.tamper = silent
    record = completed(run)
    assert [item.site for item in record.evaluations] == ["site-1"]
    assert "site-2: E40" in record.reason
    assert "site-3: no reply within 0.1 s of the others" in record.reason
    flow = run.flow
    assert flow.roster.stragglers == {"site-3"}
    for late, quiet in ((OVERDUE, {"site-3"}), (reply(REQUEST, NOTHING, {}), set())):
        flow.process_result_of_unknown_task(Client("site-3", ""), FIT, "id", late, flow.run.channel.fl_ctx)
        assert flow.roster.stragglers == quiet, "what comes late has come"
    over.set()


class Courier:
    """Of FLARE's controller what an exchange uses; all answers come at once and are handed on one by one."""

    def __init__(self, answers: dict[str, Shareable]) -> None:
        self.answers, self.lock = answers, threading.Lock()

    def broadcast(self, task: Any, fl_ctx: FLContext, targets: list[str], min_responses: int) -> None:
        for site in targets:
            client_task = ClientTask(Client(site, site), task)
            client_task.result = self.answers[site]
            threading.Thread(target=self.hand_on, args=(client_task, fl_ctx)).start()

    def hand_on(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        with self.lock:
            client_task.task.result_received_cb(client_task, fl_ctx)

    def get_client_disconnect_time(self, site: str) -> None:
        return None

    def cancel_task(self, task: Any) -> None:
        pass


def test_a_reply_that_is_there_is_in_time_however_long_others_are_judged() -> None:
    answers = {f"site-{i}": reply(REQUEST, NOTHING, {}) for i in range(12)}

    def judge(site: str, _: Reply) -> None:
        time.sleep(0.05)

    exchange = Exchange(REQUEST, judge, lambda site: {})
    limits = WaitLimits(quorum=1, min_responses=1, deadline=60.0, margin=1.0, straggler_timeout=0.0)
    outcome = exchange.run(Courier(answers), list(answers), limits, FLContext(), Signal())
    assert set(outcome.facts) == set(answers)


def test_a_site_that_says_it_passed_its_deadline_is_overdue_and_one_that_fails_is_not() -> None:
    answers = {"site-1": reply(REQUEST, NOTHING, {}), "site-2": OVERDUE, "site-3": FAILED}
    exchange = Exchange(REQUEST, lambda site, _: None, lambda site: {})
    limits = WaitLimits(quorum=1, deadline=60.0, margin=1.0, straggler_timeout=0.0)
    outcome = exchange.run(Courier(answers), ALL, limits, FLContext(), Signal())
    assert outcome.overdue == ["site-2"]
