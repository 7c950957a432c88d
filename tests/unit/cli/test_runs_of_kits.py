# SPDX-License-Identifier: Apache-2.0
"""`medflare runs list | reconcile` tell the truth of runs whose processes died, and put them in order."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from command_line import answer, facts, refusal
from medflare.core.process_identity import ProcessIdentity
from medflare.core.run_record import RunRecord, read_record
from medflare.federation.server.run_state import RunState, save_state
from medflare.recipes import run_registry
from medflare.recipes.admin_runs import point_to_run
from medflare.recipes.job_reader import read_job
from medflare.wire.durable import write_json

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A server's kit without runs."""
    folder = tmp_path / "server"
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    return folder


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until it is ended."""
    running = subprocess.Popen(SLEEP)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def dead() -> ProcessIdentity:
    """A process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    identity = ProcessIdentity.of(ended.pid)
    ended.wait()
    return identity


def write_run(
    kit: Path,
    name: str,
    status: str = "running",
    process: ProcessIdentity | None = None,
    parent: ProcessIdentity | None = None,
    exchanges: int | None = None,
) -> Path:
    """Write a run as a server leaves it."""
    folder = kit / "runs" / name
    record = RunRecord(
        job="toy",
        method="toy",
        run_id=name,
        status=status,  # type: ignore[arg-type]
        started="2026-01-01T00:00:00Z",
        best_round=None,
    )
    record.write(folder / "run.json")
    holder: dict[str, Any] = {"job": name, "attempt": 0}
    holder["process"] = (process or dead()).to_json()
    holder["parent"] = (parent or dead()).to_json()
    write_json(folder / "process.json", holder)
    if exchanges is not None:
        save_state(folder / "state", RunState(exchanges_done=exchanges, shared={"w": torch.ones(2)}))
    return folder


def states(kit: Path) -> dict[str, str]:
    return {row["run"]: row["state"] for row in facts("runs", "list", kit)}


def test_the_state_is_the_true_one_and_not_the_records(kit: Path, process: subprocess.Popen[bytes]) -> None:
    alive, ours = ProcessIdentity.of(process.pid), ProcessIdentity.of()
    write_run(kit, "died", exchanges=3)
    write_run(kit, "done", status="completed")
    write_run(kit, "waits", status="paused")
    write_run(kit, "left", process=alive)
    runs = write_run(kit, "runs", process=alive, parent=ours)
    with (runs / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert states(kit) == {
            "died": "interrupted",
            "done": "completed",
            "waits": "paused",
            "left": "orphaned",
            "runs": "running",
        }
    row = next(row for row in facts("runs", "list", kit) if row["run"] == "died")
    assert (row["exchanges"], row["pid"]) == (3, None)
    assert "interrupted" in answer("runs", "list", kit)


@pytest.mark.fault(
    "another process has the dead one's number",
    phase="`runs list`",
    result="told apart by start time and boot",
)
def test_a_process_of_the_same_number_is_not_taken_for_the_one_that_died(
    kit: Path, process: subprocess.Popen[bytes]
) -> None:
    alive = ProcessIdentity.of(process.pid)
    write_run(kit, "earlier", process=replace(alive, started=alive.started - 50))
    write_run(kit, "before-the-boot", process=replace(alive, boot="another"))
    assert set(states(kit).values()) == {"interrupted"}
    facts("runs", "reconcile", kit)
    assert process.poll() is None, "it belongs to somebody else"


@pytest.mark.fault(
    "the clock is set by {minutes} minutes", phase="`runs list`, reconcile", result="what runs is still known"
)
@pytest.mark.parametrize("minutes", [10, -10])
def test_a_clock_that_is_set_makes_no_other_process_of_one_that_runs(
    kit: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    write_run(kit, "left", process=ProcessIdentity.of(process.pid))
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda this: real(this) + 60 * minutes)
    assert states(kit) == {"left": "orphaned"}


@pytest.mark.fault(
    "FLARE's parent died and left a job process",
    phase="afterwards",
    result="`runs reconcile` ends it and closes the record",
)
def test_reconcile_ends_orphans_and_closes_records(kit: Path, process: subprocess.Popen[bytes]) -> None:
    folder = write_run(kit, "left", process=ProcessIdentity.of(process.pid))
    done = facts("runs", "reconcile", kit)
    assert [item["run"] for item in done] == ["left", "left"]
    assert process.poll() is not None
    record = read_record(folder / "run.json")
    assert (record.status, record.reason) == ("stopped", run_registry.LOST)
    assert states(kit) == {"left": "stopped"}
    assert "in order" in answer("runs", "reconcile", kit)


def test_reconcile_leaves_alone_what_runs(kit: Path, process: subprocess.Popen[bytes]) -> None:
    folder = write_run(kit, "runs", process=ProcessIdentity.of(process.pid), parent=ProcessIdentity.of())
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert facts("runs", "reconcile", kit) == []
    assert process.poll() is None
    assert read_record(folder / "run.json").status == "running"


def test_a_damaged_record_and_a_damaged_holder_are_said_to_be(kit: Path) -> None:
    folder = write_run(kit, "torn")
    (folder / "run.json").write_text("{")
    (folder / "process.json").write_text("[]")
    assert states(kit) == {"torn": "damaged"}
    assert facts("runs", "reconcile", kit) == []


def test_what_is_no_kit_is_refused(tmp_path: Path) -> None:
    assert "no startup kit" in refusal(2, "runs", "reconcile", tmp_path)
    assert "no admin's startup kit" in refusal(2, "resume", "some-job", "--kit", tmp_path)
    assert "holds no run to go on with" in refusal(2, "resume", tmp_path / "none")
    assert "--watch looks after a run at a server" in refusal(2, "resume", tmp_path / "none", "--watch")
    assert "--no-page is for a workspace" in refusal(2, "resume", "j", "--kit", tmp_path, "--no-page")
    assert "holds no run" in refusal(2, "pause", tmp_path / "none")


def test_a_job_that_resumes_says_so_to_server_and_sites(tmp_path: Path) -> None:
    job = read_job(Path(__file__).parents[3] / "jobs" / "fed_medlora")
    folder = point_to_run(job.write(tmp_path / job.title), "0001-abc")
    again = read_job(folder)
    assert again.controller["resumes"] == "0001-abc"
    assert (again.settings, again.aggregation) == (job.settings, job.aggregation)
