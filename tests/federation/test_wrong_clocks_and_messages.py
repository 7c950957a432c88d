# SPDX-License-Identifier: Apache-2.0
"""Clocks that jump, and messages that come twice, later again or slowly, change no result."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from fed_harness import SITES, Federation, accepted, completed, final
from fed_learner import ADAPTER
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable

from medflare.protocol.messages import FIT

ARGS = {"num_rounds": 4, "uplink": "int8", "deadline": 120.0}


@pytest.fixture
def undisturbed(federation: Any) -> torch.Tensor:
    run = federation(controller=ARGS)
    completed(run)
    return final(run)[ADAPTER]


def check(run: Federation, undisturbed: torch.Tensor) -> None:
    record = completed(run)
    assert accepted(record) == [list(SITES)] * ARGS["num_rounds"]
    assert all(not entry.late for entry in record.rounds)
    assert torch.equal(final(run)[ADAPTER], undisturbed)


@pytest.mark.fault("the clock is set by {minutes} minutes", phase="training", result="equal")
@pytest.mark.parametrize("minutes", [10, -10, 60 * 24 * 400])
def test_a_clock_that_is_set_in_the_middle_of_a_run_changes_nothing(
    federation: Any, undisturbed: torch.Tensor, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    """Waiting goes by the monotonic clock; the other one stands in records only."""
    real, offset = time.time, [0.0]

    def jump(site: str, task: str, message: Shareable) -> None:
        if task == FIT:
            offset[0] = 60 * minutes * (message.get_header("current_round") % 2)

    run = federation(controller=ARGS, mislead=jump)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: real() + offset[0])
        check(run, undisturbed)


@pytest.mark.fault(
    "replies come twice, and once more later", phase="every message", result="equal; counted once"
)
def test_replies_that_come_twice_and_once_more_later_count_once(
    federation: Any, undisturbed: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, before, sent = WFCommServer.process_submission, dict[str, tuple[Any, ...]](), [0]

    def again(comm: WFCommServer, client: Any, *more: Any) -> None:
        for arguments in (before.get(client.name), more, more):
            if arguments is not None:
                sent[0] += 1
                submit(comm, client, *arguments)
        before[client.name] = more

    monkeypatch.setattr(WFCommServer, "process_submission", again)
    check(federation(controller=ARGS), undisturbed)
    assert sent[0] > 3 * ARGS["num_rounds"] * len(SITES)


@pytest.mark.fault("slow messages, another delay for each site", phase="every message", result="equal")
def test_slow_messages_cost_seconds_only(federation: Any, undisturbed: torch.Tensor) -> None:
    def slow(site: str, task: str, message: Shareable) -> None:
        time.sleep(0.05 * (1 + SITES.index(site)))

    check(federation(controller=ARGS, mislead=slow, tamper=slow), undisturbed)


@pytest.mark.faults
@pytest.mark.fault("a slow disk: 10 ms for each file put in its place", phase="every write", result="equal")
def test_a_slow_disk_costs_seconds_only(
    federation: Any, undisturbed: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, slow = os.replace, [0]

    def replace(*args: Any, **more: Any) -> None:
        time.sleep(0.01)
        slow[0] += 1
        real(*args, **more)

    run = federation(controller=ARGS)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        check(run, undisturbed)
    assert slow[0] > 50
