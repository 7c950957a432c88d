# SPDX-License-Identifier: Apache-2.0
"""Whom the server waits for: in a round with a grace, before and after the rounds for everybody."""

from __future__ import annotations

import threading
import time
from typing import Any

from fed_harness import completed
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from medflare.federation.controllers.exchange import Exchange, Limits
from medflare.federation.messages import EVALUATE, FINISH, FIT, PREPARE, Reply, Request, reply

ALL = ["site-1", "site-2", "site-3"]
REQUEST = Request(
    task=EVALUATE, run_id="r", round=0, roster=ALL, deadline=60.0, uplink="float32", downlink="float32"
)
TWO_OF_THREE = {"min_accepted": 2}


def test_a_site_that_opens_its_model_late_is_in_the_run(federation) -> None:
    run = federation(controller=TWO_OF_THREE | {"grace": 0.1})

    def late(site: str, task: str, _: Any) -> None:
        if (site, task) == ("site-3", PREPARE):
            time.sleep(1.0)
            run.change(grace=60.0)

    run.tamper = late
    record = completed(run)
    assert [sorted(entry.accepted) for entry in record.rounds] == [ALL, ALL]


def test_a_large_hospitals_long_tests_are_waited_for(federation) -> None:
    """Whoever is first has few studies; the others are not given up for that."""
    large = {"sites": {"site-3": {"slow": {"val": 0.5, "test": 0.5}}}}
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 1}, toy=large)

    def soon(site: str, task: str, _: Any) -> None:
        if task == FIT:
            run.change(grace=0.1)

    run.tamper = soon
    record = completed(run)
    assert all("val_loss" in record.rounds[0].metrics[site] for site in ALL)
    assert "val_loss" in record.rounds[0].mean
    assert sorted(found.site for found in record.evaluations) == ALL
    assert record.reason == ""


def test_a_benched_site_is_asked_for_its_final_test(federation) -> None:
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 1, "bench_rounds": 5, "grace": 0.1})
    over = threading.Event()

    def silent(site: str, task: str, _: Any) -> None:
        if (site, task) == ("site-2", FIT):
            over.wait(60)
        elif task == EVALUATE:
            run.change(grace=60.0)
            over.set()

    run.tamper = silent
    record = completed(run)
    assert sorted(record.rounds[0].accepted) == ["site-1", "site-3"]
    assert sorted(found.site for found in record.evaluations) == ALL


def test_a_site_that_was_silent_is_not_waited_for_once_more(federation, clock) -> None:
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 1})
    over = threading.Event()

    def silent(site: str, task: str, _: Any) -> None:
        if (site, task) == ("site-3", EVALUATE):
            clock.gone = {site}
            over.wait(60)
        elif task == EVALUATE:
            run.change(grace=0.1)
        elif task == FINISH:
            clock.gone = set()

    run.tamper = silent
    record = completed(run)
    over.set()
    assert "site-3" not in {item.site for item in record.evaluations}
    assert "site-3: no reply within 0.1 s of the quorum" in record.reason


class Courier:
    """Of FLARE's controller what an exchange uses; every site's answer comes at the same moment."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def broadcast(self, task: Any, fl_ctx: FLContext, targets: list[str], min_responses: int) -> None:
        for site in targets:
            client_task = ClientTask(Client(site, site), task)
            client_task.result = reply(REQUEST, {"site": site}, {})
            self.threads.append(threading.Thread(target=task.result_received_cb, args=(client_task, fl_ctx)))
        for thread in self.threads:
            thread.start()

    def get_client_disconnect_time(self, site: str) -> None:
        return None

    def cancel_task(self, task: Any) -> None:
        pass


def test_a_reply_that_is_there_is_in_time_however_long_others_are_judged() -> None:
    sites = [f"site-{i}" for i in range(12)]

    def judge(site: str, _: Reply) -> None:
        time.sleep(0.05)

    exchange = Exchange(REQUEST, judge, lambda site: {})
    limits = Limits(quorum=1, enough=1, deadline=60.0, margin=1.0, grace=0.0)
    outcome = exchange.run(Courier(), sites, limits, FLContext(), Signal())  # type: ignore[arg-type]
    assert sorted(outcome.facts) == sorted(sites)
