# SPDX-License-Identifier: Apache-2.0
"""The worker process on its own: deadlines, deaths, restarts, and what it writes where."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fed_harness import TOY_WORKER, use_toy_sites
from fed_toy import ToyLearner

from medflare.core.errors import ConfigError, DataError, RunError
from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.egress.failures import FailureCode, TaskError, failure_of
from medflare.wire import files as wire_files
from medflare.wire.files import load_tensors, save_tensors
from medflare.wire.plan_codec import plan_to_json
from medflare.wire.task_messages import TaskRequest
from medflare.worker import session as worker_session
from medflare.worker.config import WorkerConfig
from medflare.worker.progress_file import read_progress
from medflare.worker.session import WorkerSession
from medflare.worker.workers import ProcessWorker

LONG = 240.0
"""Seconds that no task here takes."""


def no() -> bool:
    return False


@pytest.fixture
def start(tmp_path: Path):
    workers = []

    def make(run_id: str = "run", **settings) -> ProcessWorker:
        config = WorkerConfig(
            method="toy",
            settings=settings,
            seed=0,
            site="site-1",
            site_file="",
            state_folder=str(tmp_path / "state"),
            cache_folder=str(tmp_path / "cache"),
            run_id=run_id,
        )
        workers.append(ProcessWorker(config, tmp_path / "worker", command=TOY_WORKER))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def fit(number: int, **options) -> TaskRequest:
    plan = plan_to_json(RoundPlan(round=number, rounds=9))
    return TaskRequest(
        task="fit", plan=plan, options=options, tensors=ToyLearner({}, "site-1", 0).initial_shared()
    )


PREPARE = TaskRequest(task="prepare", plan={}, options={"sites": 3})


@pytest.mark.fault("a worker hangs", phase="training", result="killed at the deadline; its state comes back")
def test_a_hanging_worker_is_killed_at_the_deadline_and_comes_back_with_its_state(start) -> None:
    worker = start(hang={"1": 60})
    worker.run_task(fit(0), LONG, no)
    first = worker.process.pid
    started = time.monotonic()
    with pytest.raises(TaskError, match="E31"):
        worker.run_task(fit(1), 0.3, no)
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    worker.run_task(fit(2), LONG, no)
    _, values = load_tensors(Path(worker.config.state_folder) / "local_state.safetensors")
    assert values["learner"]["fits"] == 2


def test_how_far_a_task_is_lies_beside_the_log_while_it_runs(start, tmp_path: Path) -> None:
    worker, seen = start(seconds_a_step=0.6), set()
    worker.run_task(PREPARE, LONG, no)

    def watch() -> bool:
        progress = read_progress(tmp_path / "worker")
        seen.add(str(progress))
        return False

    worker.run_task(fit(0), LONG, watch)
    # A busy machine may look late and miss one of the steps.
    assert seen & {"step 1 of 3", "step 2 of 3"}
    assert read_progress(tmp_path / "worker") is None


def test_an_aborted_job_kills_the_worker(start) -> None:
    worker = start(hang={"0": 60})
    worker.run_task(PREPARE, LONG, no)
    with pytest.raises(TaskError, match="E32"):
        worker.run_task(fit(0), LONG, lambda: True)
    assert worker.process is None


@pytest.mark.fault("a worker is killed", phase="between tasks", result="started again with its state")
@pytest.mark.faults
def test_a_worker_killed_between_tasks_is_started_again(start) -> None:
    worker = start()
    worker.run_task(PREPARE, LONG, no)
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()
    assert worker.run_task(fit(0), LONG, no).facts["examples"] == 16


def test_the_worker_ends_when_its_executor_does(start) -> None:
    worker = start()
    worker.run_task(PREPARE, LONG, no)
    process = worker.process
    worker._channel.close()
    assert process.wait(60) == 0


def test_local_state_of_another_run_is_not_restored(start) -> None:
    worker = start()
    worker.run_task(fit(0), LONG, no)
    worker.close()
    other = start(run_id="another")
    other.run_task(fit(0), LONG, no)
    _, values = load_tensors(Path(other.config.state_folder) / "local_state.safetensors")
    assert values["learner"]["fits"] == 1


def test_no_tensor_files_are_left_and_no_pickle_is_used(start, tmp_path: Path) -> None:
    worker = start()
    assert worker.run_task(fit(0), LONG, no).tensors
    assert [path.name for path in (tmp_path / "worker").iterdir()] == ["worker.log"]


def test_one_torch_thread_and_passive_waiting(start, tmp_path: Path) -> None:
    worker = start()
    worker.run_task(PREPARE, LONG, no)
    environment = Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0")
    assert {b"OMP_NUM_THREADS=1", b"OMP_WAIT_POLICY=PASSIVE", b"LRU_CACHE_CAPACITY=64"} <= set(environment)


def test_the_whole_trace_stays_in_the_sites_log(start, tmp_path: Path) -> None:
    worker = start(raises={"0": "DataError"})
    with pytest.raises(TaskError) as caught:
        worker.run_task(fit(0), LONG, no)
    assert "Doe" not in str(caught.value)
    assert "patient John Doe" in (tmp_path / "worker/worker.log").read_text()


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("settings.lr is -1"), FailureCode.CONFIG, True),
        (RunError("too few"), FailureCode.RUN, True),
        (DataError("/data/p100/s5.jpg is missing"), FailureCode.DATA, False),
        (ValueError("p100"), FailureCode.UNEXPECTED, False),
    ],
)
def test_what_an_error_may_say(error: Exception, code: FailureCode, told: bool) -> None:
    failure = failure_of(error)
    assert failure.code is code
    assert (str(error) in failure.text) is told


def test_tensors_survive_the_file_unchanged(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 2).to(torch.bfloat16), "n": torch.tensor(3), "flag": torch.tensor([True])}
    save_tensors(tmp_path / "x.safetensors", state, {"round": 3})
    back, values = load_tensors(tmp_path / "x.safetensors")
    assert values == {"round": 3}
    assert all(
        torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state
    )


@pytest.fixture
def toy_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[type[ToyLearner]], WorkerSession]:
    """Makes a site's session with a learner of the given class."""
    use_toy_sites(monkeypatch)
    config = WorkerConfig(
        method="toy",
        settings={},
        seed=0,
        site="site-1",
        site_file="",
        state_folder=str(tmp_path / "state"),
        cache_folder=str(tmp_path),
        run_id="run",
    )
    return lambda learner: WorkerSession(
        config, lambda method, settings, site, seed, cache: learner(settings, "site-1", seed)
    )


def test_a_round_that_fails_half_way_leaves_nothing_in_what_never_leaves(
    toy_session: Callable[[type[ToyLearner]], WorkerSession],
) -> None:
    class Breaks(ToyLearner):
        def fit(self, plan: RoundPlan) -> Update:
            update = super().fit(plan)
            if plan.round == 1:
                self.bias.fill_(float("nan"))
                raise ValueError("half way")
            return update

    session = toy_session(Breaks)
    session.run_task(fit(0))
    good = session.learner.bias.clone()
    with pytest.raises(ValueError, match="half way"):
        session.run_task(fit(1))
    assert torch.equal(session.learner.bias, good)
    assert session.learner.fits == 1


@pytest.mark.fault(
    "a site's state cannot be written", phase="saving local state", result="the round is not half done"
)
def test_a_round_whose_state_cannot_be_written_is_not_half_done(
    toy_session: Callable[[type[ToyLearner]], WorkerSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = toy_session(ToyLearner)
    session.run_task(fit(0))
    good = session.learner.bias.clone()

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError("state")

    with monkeypatch.context() as patch:
        patch.setattr(worker_session, "save_tensors", refuse)
        with pytest.raises(PermissionError):
            session.run_task(fit(1))
    assert torch.equal(session.learner.bias, good)
    assert session.learner.fits == 1


def test_tensors_that_share_memory_are_saved_apart_and_no_other_is_copied(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    given = {"whole": whole, "same": whole, "part": whole[2:4], "turned": whole.view(2, 3).T}
    save_tensors(tmp_path / "file.safetensors", given)
    loaded, _ = load_tensors(tmp_path / "file.safetensors")
    assert all(torch.equal(value, loaded[name]) for name, value in given.items())
    apart = wire_files._apart(given)
    assert apart["whole"].data_ptr() == whole.data_ptr()
    assert len({value.untyped_storage().data_ptr() for value in apart.values()}) == len(given)
