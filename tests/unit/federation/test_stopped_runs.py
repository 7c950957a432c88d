# SPDX-License-Identifier: Apache-2.0
"""Whatever ends `medflare run` ends all its processes, and leaves a record that says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from command_line import facts
from medflare.core.run_record import read_record
from medflare.core.stop_signals import StopSignal, stop_signals_raise
from medflare.recipes import old_runs

PROGRAM = Path(__file__).with_name("stopped_run_program.py")
JOB = Path(__file__).parents[3] / "jobs/fedmrg"
SITES = "sites:\n" + "".join(f"  site-{n}: {{cohort: {{format: manifest, root: '.'}}}}\n" for n in (1, 2, 3))
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run and returns it once all its processes are there and the record is written."""
    (tmp_path / "site.yaml").write_text(SITES)
    command = ["run", JOB, "-f", tmp_path / "site.yaml", "-w", tmp_path / "ws"]
    started: list[subprocess.Popen[str]] = []

    def begin(how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, PROGRAM, how, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,  # what a background shell ignores, its children would ignore too
        )
        started.append(process)
        until = time.monotonic() + 120
        while not (tmp_path / "ws/0.pid").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()
    for pid in pids(tmp_path / "ws"):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def heed_signals() -> None:
    """Have a process end by signals, whatever its parent ignores."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pids(workspace: Path) -> list[int]:
    """Return the numbers of the processes that the stand-in and what is below it have noted."""
    return [int(file.read_text()) for file in sorted(workspace.glob("*.pid"))]


def running(numbers: list[int]) -> list[int]:
    """Return those that run still."""
    return [
        pid
        for pid in numbers
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.fault(
    "`medflare run` gets a signal", phase="mid-run", result="all processes end; the record says stopped"
)
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.faults) for n in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_ends_all_processes_and_closes_the_record(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    run = start("obedient")
    children = pids(tmp_path / "ws")
    assert len(children) == 4
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert running(children) == []
    record = read_record(tmp_path / "ws/server/simulate_job")
    assert (record.status, record.reason) == ("stopped", f"stopped by {number.name}")
    assert record.rounds[1].absent == {"site-2": "the run ended before its update was judged"}
    assert f"stopped by {number.name}. What is left of it: the state from which" in errors
    assert "Traceback" not in errors
    (status,) = facts("status", tmp_path / "ws")
    assert (status["state"], status["phase"]) == ("stopped", f"stopped stopped by {number.name}")


@pytest.mark.fault(
    "`medflare run` gets SIGTERM, its processes ignore it",
    phase="mid-run",
    result="SIGKILL after 5 s; the record says stopped",
)
@pytest.mark.faults
def test_processes_that_ignore_sigterm_are_killed(start: Start, tmp_path: Path) -> None:
    run = start("deaf")
    children = pids(tmp_path / "ws")
    run.terminate()
    run.send_signal(signal.SIGINT)  # an impatient second one cuts nothing short
    run.communicate(timeout=60)
    assert run.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert running(children) == []
    assert read_record(tmp_path / "ws/server/simulate_job").status == "stopped"


@pytest.mark.fault(
    "`medflare run` is killed (SIGKILL)",
    phase="mid-run",
    result="its processes end by themselves; interrupted",
)
@pytest.mark.faults
def test_children_of_a_killed_run_end_and_the_run_counts_as_interrupted(start: Start, tmp_path: Path) -> None:
    run = start("deaf")
    children = pids(tmp_path / "ws")
    (status,) = facts("status", tmp_path)
    expected = {"state": "running", "pid": run.pid, "round": 2, "rounds": 4, "phase": "round 2 of 4"}
    assert {key: status[key] for key in expected} == expected
    assert status["sites"] == {"site-1": "accepted", "site-2": "training"}
    run.kill()
    run.communicate()
    until = time.monotonic() + 30
    while running(children) and time.monotonic() < until:
        time.sleep(0.1)
    assert running(children) == []
    (found,) = old_runs.find_runs(tmp_path)
    assert (found.state, found.live) == ("interrupted", False)
    (status,) = facts("status", tmp_path)
    assert (status["state"], status["pid"]) == ("interrupted", None)


@pytest.mark.fault(
    "the simulator ends without a word", phase="mid-run", result="the record says failed, and why"
)
@pytest.mark.faults
def test_a_run_whose_simulator_ended_without_a_word_is_closed_as_failed(start: Start, tmp_path: Path) -> None:
    run = start("ends")
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 5
    assert "the simulator ended without a word" in errors
    assert read_record(tmp_path / "ws/server/simulate_job").status == "failed"
    assert running(pids(tmp_path / "ws")) == []


def test_an_ignored_signal_stays_ignored_and_handlers_are_put_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` has it
        with stop_signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(StopSignal) as caught:
                os.kill(os.getpid(), signal.SIGTERM)
        assert caught.value.exit_code == 143
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
