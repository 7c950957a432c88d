# SPDX-License-Identifier: Apache-2.0
"""Too little memory at a site costs it the round, under its own number, and nobody else anything."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import SITES, TOY_WORKER, accepted, completed
from fed_toy import ToyLearner

from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.egress.failures import OUT_OF_MEMORY, FailureCode, TaskError, failure_of
from medflare.wire import memory
from medflare.wire.task_messages import TaskRequest
from medflare.worker import workers as site_worker
from medflare.worker.config import WorkerConfig
from medflare.worker.workers import ProcessWorker

HUGE = 1 << 60
"""Bytes that no machine gives."""


class Greedy(ToyLearner):
    """site-2 wants more in round 1 than there is."""

    def fit(self, plan: RoundPlan) -> Update:
        if self.site == "site-2" and plan.round == 1:
            torch.empty(HUGE, dtype=torch.uint8)
        return super().fit(plan)


@pytest.mark.fault(
    "too little memory: an allocation fails", phase="training", result="misses the round with E34"
)
def test_a_failed_allocation_costs_its_site_the_round(federation) -> None:
    run = federation(learner=Greedy, controller={"num_rounds": 3, "min_responses": 2})
    record = completed(run)
    assert accepted(record) == [list(SITES), ["site-1", "site-3"], list(SITES)]
    assert record.rounds[1].absent == {"site-2": f"E34 {OUT_OF_MEMORY}"}


def _allocated(kind: Any) -> Exception:
    try:
        kind()
    except Exception as error:
        return error
    raise AssertionError("there was enough")


def test_what_too_little_memory_says() -> None:
    errors = [
        _allocated(lambda: torch.empty(HUGE, dtype=torch.uint8)),
        _allocated(lambda: bytearray(HUGE)),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ]
    for error in errors:
        assert failure_of(error).code is FailureCode.OUT_OF_MEMORY, error
    others = [RuntimeError("shapes do not match"), OSError(errno.ENOSPC, "No space left"), KeyError("memory")]
    assert not any(map(memory.is_out_of_memory, others))


@pytest.mark.fault("too little memory: the kernel ends the worker", phase="training", result="{code}")
@pytest.mark.parametrize(
    ("kills", "code"),
    [(1, FailureCode.OUT_OF_MEMORY), pytest.param(0, FailureCode.WORKER_DIED, marks=pytest.mark.faults)],
)
def test_a_worker_that_the_kernel_ended_for_memory_is_told_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, code: FailureCode
) -> None:
    config = WorkerConfig(
        method="toy",
        settings={"hang": {"0": 60}},
        seed=0,
        site="site-1",
        site_file="",
        state_folder=str(tmp_path / "state"),
        cache_folder=str(tmp_path / "cache"),
        run_id="run",
    )
    worker = ProcessWorker(config, tmp_path / "worker", command=TOY_WORKER)
    counted = [5]
    monkeypatch.setattr(site_worker, "oom_kills", lambda: counted[0])
    worker.run_task(TaskRequest(task="prepare", plan={}, options={"sites": 3}), 240.0, lambda: False)

    def killed() -> bool:
        assert worker.process is not None
        counted[0] += kills
        os.kill(worker.process.pid, signal.SIGKILL)
        return False

    try:
        with pytest.raises(TaskError) as caught:
            worker.run_task(
                TaskRequest(
                    task="fit",
                    plan={"round": 0, "rounds": 9},
                    options={},
                    tensors=ToyLearner({}, "site-1", 0).initial_shared(),
                ),
                240.0,
                killed,
            )
    finally:
        worker.close()
    assert caught.value.failure.code is code


def test_kills_are_counted_from_the_machine_and_from_our_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 3\n")
    (tmp_path / "mine").write_text("0::/kit.slice/site.service\n")
    group = tmp_path / "cgroup/kit.slice/site.service"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 7\noom_kill 2\noom_group_kill 0\n")
    monkeypatch.setattr(memory, "_SYSTEM", tmp_path / "vmstat")
    monkeypatch.setattr(memory, "_MINE", tmp_path / "mine")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "cgroup")
    assert memory.oom_kills() == 5
    for file in ("vmstat", "mine"):
        (tmp_path / file).unlink()
    assert memory.oom_kills() == 0
