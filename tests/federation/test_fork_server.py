# SPDX-License-Identifier: Apache-2.0
"""Workers that are forked from one process behave as programs of their own do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from medflare.egress.failures import FailureCode, TaskError
from medflare.wire.task_messages import TaskRequest
from medflare.worker import fork_server
from medflare.worker.config import WorkerConfig
from medflare.worker.workers import ProcessWorker

SECONDS = 240.0
ENDS_WITH_7 = "import sys; sys.stdin.read(); sys.exit(7)"


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A fork server of a method that nobody has, over a command that ends when its standard input does."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "workers")
        program = [sys.executable, "-P", "-m", "medflare.worker.fork_server", path, "nobody's"]
        process = subprocess.Popen([*program, sys.executable, "-c", ENDS_WITH_7], stdin=subprocess.PIPE)
        until = time.monotonic() + SECONDS
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(fork_server.VARIABLE, path)
            yield process
        process.kill()
        process.wait()


@pytest.fixture
def worker(server: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[ProcessWorker]:
    (tmp_path / "site.yaml").write_text("cohort: {format: notes_jsonl, root: .}\n")
    config = WorkerConfig(
        method="nobody's",
        settings={},
        seed=0,
        site="site-1",
        site_file=str(tmp_path / "site.yaml"),
        state_folder=str(tmp_path / "state"),
        cache_folder=str(tmp_path / "cache"),
        run_id="run",
    )
    made = ProcessWorker(config, tmp_path / "worker")
    yield made
    made.close()


def ask(worker: ProcessWorker) -> TaskError:
    """The failure of a task: there is no such method, which the worker finds out when it builds a learner."""
    with pytest.raises(TaskError) as error:
        worker.run_task(TaskRequest(task="prepare", plan={}), SECONDS, lambda: False)
    return error.value


def test_a_forked_worker_answers_and_writes_its_log(worker: ProcessWorker) -> None:
    assert ask(worker).failure.code is not FailureCode.WORKER_DIED
    assert isinstance(worker.process, fork_server.ForkedProcess)
    assert worker.process.poll() is None
    assert "method 'nobody's' does not exist" in (worker.scratch / "worker.log").read_text()


def test_a_forked_worker_that_is_killed_is_named_so_and_started_again(worker: ProcessWorker) -> None:
    ask(worker)
    assert worker.process is not None
    first = worker.process.pid
    os.kill(first, signal.SIGKILL)
    assert worker.process.wait(SECONDS) == -signal.SIGKILL
    ask(worker)
    assert worker.process.pid != first


def test_a_closed_worker_has_gone_with_all_of_its_group(worker: ProcessWorker) -> None:
    ask(worker)
    assert worker.process is not None
    pid = worker.process.pid
    assert os.getpgid(pid) == pid
    worker.close()
    assert not psutil.pid_exists(pid)


def test_without_a_server_that_answers_a_worker_is_a_program(
    worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(fork_server.VARIABLE, str(tmp_path / "nowhere"))
    assert ask(worker).failure.code is not FailureCode.WORKER_DIED
    assert isinstance(worker.process, subprocess.Popen)


def test_the_server_ends_with_its_command_and_its_exit_code(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(SECONDS) == 7
