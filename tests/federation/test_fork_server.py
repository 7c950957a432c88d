# SPDX-License-Identifier: Apache-2.0
"""Workers and programs that are forked from one process behave as programs of their own do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from medflare.egress.failures import FailureCode, TaskError
from medflare.wire.task_messages import TaskRequest
from medflare.worker import fork_server
from medflare.worker.config import WorkerConfig
from medflare.worker.workers import ProcessWorker

SECONDS = 240.0
PROGRAM = Path(__file__).with_name("fed_forking.py")


@contextmanager
def forking(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`forked_simulator` of a method that nobody has, over a module that ends when its input does."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROGRAM.parent), *sys.path[1:]])}
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(folder)], stdin=subprocess.PIPE, env=env)
    log = folder / "log"
    log.touch()
    order = {"method": "nobody's", "module": "fed_forked_parent", "arguments": arguments, "log": str(log)}
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory() as name, forking(Path(name)) as process:
        workers = Path(name) / "workers"
        until = time.monotonic() + SECONDS
        while not workers.exists() and time.monotonic() < until:
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(fork_server.VARIABLE, str(workers))
            yield process


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


def test_what_the_simulator_starts_is_forked_and_behaves_as_a_program() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with forking(folder, str(folder / "outcome")) as process:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(SECONDS) == 7, (folder / "log").read_text()
        outcome = json.loads((folder / "outcome").read_text())
    facts = outcome["facts"]
    assert facts["torch"]  # without an import of its own
    assert (facts["arguments"], facts["added"], facts["input"]) == (["a b"], "yes", "")
    assert (facts["folder"], facts["path"]) == (os.getcwd(), ["/somewhere", "/else"])
    assert facts["pid"] == facts["group"] != outcome["stub"]
    assert facts["python"] == Path(sys.executable).name  # not the program that stands for it
    assert outcome["codes"] == [5, -signal.SIGTERM]
    assert (outcome["runs"], outcome["runs after"]) == (True, False)  # it ends with what stands for it
    assert outcome["other"] == "6"


def test_a_simulator_that_nobody_orders_ends(tmp_path: Path) -> None:
    assert (
        subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], input=b"", timeout=SECONDS).returncode
        == 0
    )


def test_what_a_final_test_imports_late_is_imported_before_workers_are_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported: dict[str, list[str]] = {"fedmrg": [], "fed_medlora": []}
    for method, names in imported.items():
        monkeypatch.setattr(fork_server.importlib, "import_module", names.append)
        monkeypatch.setattr(fork_server.gc, "freeze", lambda: None)
        fork_server.preload(method)
    assert "rouge_score.rouge_scorer" in imported["fedmrg"]
    assert "rouge_score.rouge_scorer" not in imported["fed_medlora"]
    assert all("peft" in names for names in imported.values())
