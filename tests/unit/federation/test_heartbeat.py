# SPDX-License-Identifier: Apache-2.0
"""A run that stalls or ends starts the operator's command with the facts as JSON; no command ends a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import refusal
from medflare.core.errors import ConfigError, RunError
from medflare.core.run_record import RunRecord
from medflare.federation import heartbeat
from medflare.federation.heartbeat import Heartbeat, Hooks, read_hooks
from medflare.federation.server.progress import ProgressReporter
from medflare.recipes import simulate
from medflare.recipes.job_reader import read_job

JOB = Path(__file__).parents[3] / "jobs/fedmrg"
APPEND = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
"""Adds what a command gets to a file."""


def command(file: Path) -> list[str]:
    """Return a command whose one argument a shell would take apart."""
    return [sys.executable, "-c", APPEND, str(file)]


def told(file: Path) -> list[dict[str, Any]]:
    """Return what commands were given."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., Heartbeat]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def make(clock: Clock, warnings: list[str]) -> Make:
    """Makes a heartbeat of a run with a deadline of 60 seconds."""
    return lambda **hooks: Heartbeat(
        Hooks(**hooks), 60.0, {"run_id": "r1", "job": "toy"}, warnings.append, clock=clock
    )


def test_two_deadlines_without_progress_are_told_once(make: Make, clock: Clock, tmp_path: Path) -> None:
    beat = make(on_stall=command(tmp_path / "$(told) &"))
    beat.progress({"phase": "round", "round": 2})
    clock.now = 119.0
    beat.check()
    assert told(tmp_path / "$(told) &") == []
    for clock.now in (120.0, 500.0):
        beat.check()
    expected = {
        "run_id": "r1",
        "job": "toy",
        "round": 3,
        "status": "stalled",
        "reason": "no progress for 120 s",
    }
    assert told(tmp_path / "$(told) &") == [expected]


def test_progress_begins_the_time_anew_and_a_stall_is_none(make: Make, clock: Clock, tmp_path: Path) -> None:
    beat = make(on_stall=command(tmp_path / "told"))
    clock.now = 100.0
    beat.progress({"phase": "update"})
    clock.now = 219.0
    beat.progress({"phase": "stalled"})
    beat.check()
    assert told(tmp_path / "told") == []
    clock.now = 220.0
    beat.check()
    beat.progress({"phase": "update"})
    clock.now = 340.0
    beat.check()
    assert len(told(tmp_path / "told")) == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["/no/such/program"], "could not be run"),
        ([sys.executable, "-c", "raise SystemExit('no mail today')"], "ended with 1. no mail today"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "timed out"),
        (["nul\0"], "could not be run"),
    ],
)
def test_a_command_that_fails_is_a_warning(
    make: Make, warnings: list[str], monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.setattr(heartbeat, "TIME_LIMIT", 5.0)
    make(on_end=words).end("completed", "")
    (warning,) = warnings
    assert text in warning


def test_a_kit_names_the_commands_and_unknown_keys_are_refused(tmp_path: Path) -> None:
    assert read_hooks(tmp_path) == Hooks()
    (tmp_path / "local").mkdir()
    (tmp_path / "local/medflare.yaml").write_text("on_stall: [mail, -s, stalled, me]\n")
    assert read_hooks(tmp_path).on_stall == ["mail", "-s", "stalled", "me"]
    (tmp_path / "local/medflare.yaml").write_text("on_stal: [mail]\n")
    with pytest.raises(ConfigError, match="on_stal"):
        read_hooks(tmp_path)


def kit(folder: Path, file: Path) -> Path:
    """Write a kit whose commands append to a file."""
    (folder / "local").mkdir(parents=True)
    hooks = {"on_stall": command(file), "on_end": command(file)}
    (folder / "local/medflare.yaml").write_text(json.dumps(hooks))
    return folder


def test_the_servers_progress_tells_stall_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_POLL", 0.02)
    progress = ProgressReporter(tensorboard=False)
    progress.open(tmp_path / "run")
    progress.event("round", round=0, rounds=2, sites=["site-1"])
    beat_told = tmp_path / "told"
    progress.watch(kit(tmp_path / "kit", beat_told), 0.0, {"run_id": "r1", "job": "toy"})
    while not told(beat_told):  # bounded by the test's own time limit
        pass
    progress.event("failed", reason="too few")
    progress.close()
    stalled, ended = told(beat_told)[0], told(beat_told)[-1]
    assert (stalled["status"], stalled["run_id"]) == ("stalled", "r1")
    assert (ended["status"], ended["reason"]) == ("failed", "too few")
    lines = (tmp_path / "run/progress.jsonl").read_text().splitlines()
    assert "stalled" in {json.loads(line)["phase"] for line in lines}


def test_a_wrong_file_of_a_kit_costs_nobody_the_run(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local/medflare.yaml").write_text("[]")
    progress = ProgressReporter(tensorboard=False)
    progress.watch(tmp_path, 60.0, {})
    progress.event("completed")
    progress.close()


def test_a_local_run_tells_its_end_however_it_ends(tmp_path: Path) -> None:
    job, hooks = read_job(JOB), Hooks(on_end=command(tmp_path / "told"))

    def run(workspace: Path) -> None:
        with simulate.telling(hooks, job, workspace, None), simulate.closing_record(workspace):
            raise RunError("the simulator took more than 3 s")

    with pytest.raises(RunError):
        run(tmp_path / "none")
    record = RunRecord(job="toy", method="toy", run_id="r7", started="2026-11-20T10:00:00Z", best_round=None)
    record.write(tmp_path / "ws/server/simulate_job/run.json")
    with pytest.raises(RunError):
        run(tmp_path / "ws")
    first, second = told(tmp_path / "told")
    assert (first["status"], first["reason"]) == ("failed", "the server wrote no record")
    assert (second["status"], second["run_id"]) == ("failed", "r7")
    assert second["reason"] == "the simulator took more than 3 s"


@pytest.mark.parametrize("option", ["--on-stall", "--on-end"])
def test_a_command_that_cannot_be_started_is_refused_before_the_run(option: str) -> None:
    assert "there is no program no-such-mail" in refusal(2, "run", JOB, option, "no-such-mail -s x")
    assert "No closing quotation" in refusal(2, "run", JOB, option, "mail 'x")
