# SPDX-License-Identifier: Apache-2.0
"""`medflare runs prune` deletes old runs in one folder, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from command_line import answer, facts, medflare, refusal
from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord
from medflare.recipes.old_runs import QUIET, choose, delete, find_runs
from medflare.recipes.workspace_lock import in_use, locked

DAY = 86400.0


def make(folder: Path, name: str, days: float, status: str = "completed", inner: str = "") -> Path:
    """Write a run that began so many days ago, and return its workspace."""
    began = time.time() - days * DAY
    record = RunRecord(
        job="toy",
        method="toy",
        run_id=name,
        status=status,  # type: ignore[arg-type]
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        best_round=None,
    )
    file = folder / name / inner / "run.json"
    record.write(file)
    os.utime(file, (began, began))
    (folder / name / "weights").write_bytes(bytes(1000))
    return folder / name


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs of 1, 10 and 100 days, and what is none: a file, a folder, links to what lies outside."""
    folder = tmp_path / "runs"
    make(folder, "young", 1)
    make(folder, "older", 10, inner="server/simulate_job")
    make(folder, "oldest", 100, status="failed")
    outside = make(tmp_path, "outside", 1000)
    (folder / "link").symlink_to(outside)
    (folder / "notes").mkdir()
    (folder / "notes" / "x.txt").write_text("kept")
    (folder / "file").write_text("kept")
    (folder / "half").mkdir()
    (folder / "half" / "server").symlink_to(outside)
    (folder / "half" / "run.json").symlink_to(outside / "run.json")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


KEPT = {"link", "notes", "file", "half"}


def test_runs_are_found_and_links_are_not_followed(runs: Path) -> None:
    result = find_runs(runs)
    assert [(run.path.name, run.state) for run in result] == [
        ("young", "completed"),
        ("older", "completed"),
        ("oldest", "failed"),
    ]
    assert all(1000 < run.size < 20_000 for run in result)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--keep", 1], {"young"}),
        (["--keep", 0], set()),
        (["--older-than", 30], {"young", "older"}),
        (["--keep", 2, "--older-than", 5], {"young", "older"}),
        (["--keep", 0, "--older-than", 5], {"young"}),
        ([], {"young", "older", "oldest"}),
    ],
)
def test_what_goes(runs: Path, options: list[object], left: set[str]) -> None:
    answer("runs", "prune", runs, *options, "--yes")
    assert names(runs) == left | KEPT
    assert (runs.parent / "outside" / "run.json").exists()


def test_nothing_goes_without_a_yes(runs: Path) -> None:
    assert medflare("runs", "prune", runs, "--keep", 0).exit_code == 1
    rows = facts("runs", "prune", runs, "--keep", 1)
    assert [(row["chosen"], row["deleted"]) for row in rows] == [(False, False), (True, False), (True, False)]
    assert names(runs) == {"young", "older", "oldest"} | KEPT
    rows = facts("runs", "prune", runs, "--keep", 1, "--yes")
    assert [row["deleted"] for row in rows] == [False, True, True]
    assert names(runs) == {"young"} | KEPT


def test_links_inside_a_run_lead_nowhere(runs: Path) -> None:
    secret = runs.parent / "secret"
    secret.mkdir()
    (secret / "patients.csv").write_text("kept")
    (runs / "oldest" / "data").symlink_to(secret)
    answer("runs", "prune", runs, "--keep", 0, "--yes")
    assert (secret / "patients.csv").read_text() == "kept"


def test_a_run_that_goes_on_stays(runs: Path) -> None:
    with locked(runs / "oldest"):
        assert in_use(runs / "oldest")
        assert [run.path.name for run in find_runs(runs) if run.live] == ["oldest"]
        answer("runs", "prune", runs, "--keep", 0, "--yes")
        assert names(runs) == {"oldest", "oldest.state"} | KEPT
    assert not in_use(runs / "oldest")
    answer("runs", "prune", runs, "--keep", 0, "--yes")
    assert names(runs) == KEPT


def test_a_run_without_a_lock_that_was_written_lately_stays(runs: Path) -> None:
    file = make(runs, "running", 3, status="running") / "run.json"
    states = {run.path.name: (run.state, run.live) for run in find_runs(runs)}
    assert states["running"] == ("interrupted", False)
    now = time.time() - QUIET / 2
    os.utime(file, (now, now))
    assert "running" not in {run.path.name for run in choose(find_runs(runs), 0, None)}


@pytest.mark.parametrize("name", ["-rf", "..x", "a\nb", "\x1b[2Jclear", "[red]x", "ü 1", "*"])
def test_names_are_only_names(tmp_path: Path, name: str) -> None:
    make(tmp_path / "runs", name, 10)
    make(tmp_path / "runs", "other", 1)
    text = answer("runs", "prune", tmp_path / "runs", "--keep", 1, "--yes")
    assert "\x1b[2J" not in text
    assert names(tmp_path / "runs") == {"other"}


def test_a_damaged_record_is_named_and_can_go(tmp_path: Path) -> None:
    (make(tmp_path, "x", 5) / "run.json").write_text("{")
    assert facts("runs", "prune", tmp_path, "--keep", 0)[0]["state"] == "damaged"
    answer("runs", "prune", tmp_path, "--keep", 0, "--yes")
    assert not (tmp_path / "x").exists()


def test_what_changed_since_it_was_listed_stays(runs: Path) -> None:
    (oldest,) = choose(find_runs(runs), 2, None)
    (runs / "oldest").rename(runs.parent / "moved")
    (runs / "oldest").symlink_to(runs.parent / "moved")
    with pytest.raises(ConfigError, match="is no longer a run's folder"):
        delete(oldest, runs)
    with pytest.raises(ConfigError, match="is no longer a run's folder"):
        delete(oldest, runs.parent)
    assert (runs.parent / "moved" / "run.json").exists()


def test_no_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(3, "runs", "prune", tmp_path / "none", "--keep", 1)
