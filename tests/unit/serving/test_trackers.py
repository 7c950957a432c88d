# SPDX-License-Identifier: Apache-2.0
"""`medflare track`: every number of a run once, in a tracker that a test stands in for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_serve import record

from command_line import facts, refusal
from medflare.serving.trackers import Tracker, WandbTracker, track


class Recorded(Tracker):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.scores: dict[str, float] | None = None

    def begin(self, name: str, facts: Any) -> None:
        self.facts = {"name": name, **facts}

    def log(self, number: int, values: Any) -> None:
        self.rounds.append((number, dict(values)))

    def end(self, scores: Any) -> None:
        self.scores = dict(scores)


def test_rounds_count_from_one_and_scores_come_last(tmp_path: Path) -> None:
    record("one").write(tmp_path / "run.json")
    tracker = Recorded()
    assert track(tmp_path / "run.json", tracker) == 2
    assert [number for number, _ in tracker.rounds] == [1, 2]
    first = tracker.rounds[0][1]
    assert (first["north/train_loss"], first["seconds"], first["south/absent"]) == (2.0, 20.0, 1.0)
    assert tracker.scores == {"test/north/generic/ner_strict_f1": 0.4}
    assert tracker.facts == {
        "name": "one",
        "job": "fed_medlora",
        "method": "fed_medlora",
        "task": "extraction",
    }


def test_a_run_is_followed_to_its_end_and_no_round_comes_twice(tmp_path: Path) -> None:
    whole = record("one")
    begun = whole.model_copy(update={"status": "running", "rounds": whole.rounds[:1], "evaluations": []})
    begun.write(tmp_path / "run.json")
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            whole.write(tmp_path / "run.json")

    tracker = Recorded()
    assert track(tmp_path / "run.json", tracker, lambda: len(looks) < 3, wait) == 2
    assert [number for number, _ in tracker.rounds] == [1, 2]
    assert tracker.scores
    assert len(looks) == 3


@pytest.mark.parametrize("exchanges", [False, True])
def test_a_round_is_copied_when_it_is_over_with_its_validation(tmp_path: Path, exchanges: bool) -> None:
    """Training is in the record before the sites have validated; of a round of several exchanges, its seconds
    so far are, too."""
    whole = record("one")
    first, second = whole.rounds
    if exchanges:
        first, second = (entry.model_copy(update={"exchanges": [entry]}) for entry in (first, second))
    trained = first.model_copy(
        update={
            "seconds": 3.0 if exchanges else 0.0,
            "metrics": {"north": {"train_loss": 2.0}},
            "mean": {"train_loss": 2.0},
        }
    )
    stages = [[], [trained], [first], [first, second.model_copy(update={"seconds": 0.0})], [first, second]]
    tracker, seen = Recorded(), []

    def write(rounds: list[Any]) -> None:
        whole.model_copy(update={"status": "running", "rounds": rounds}).write(tmp_path / "run.json")

    def wait(seconds: float) -> None:
        seen.append(len(tracker.rounds))
        write(stages[len(seen)])

    write(stages[0])
    assert track(tmp_path / "run.json", tracker, lambda: len(seen) < len(stages) - 1, wait) == 2
    assert seen == [0, 0, 0 if exchanges else 1, 1]
    assert [number for number, _ in tracker.rounds] == [1, 2]
    logged = tracker.rounds[0][1]
    assert logged["seconds"] == first.seconds
    assert {f"north/{name}" for name in first.metrics["north"]} <= set(logged)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What MLflow is asked for, in order."""
    calls: list[tuple[str, Any]] = []
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics", "end_run")

    def recorded(name: str) -> Any:
        return lambda *args, **named: calls.append((name, args or named))

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{name: recorded(name) for name in names}))
    return calls


def test_the_command_copies_a_run_into_mlflow(tmp_path: Path, mlflow: list[tuple[str, Any]]) -> None:
    record("one").write(tmp_path / "first" / "run.json")
    record("two").write(tmp_path / "second" / "run.json")
    said = refusal(3, "track", tmp_path, "--to", "mlflow")
    assert "name one of these with --run" in said
    done = facts("track", tmp_path, "--to", "mlflow", "--run", "first", "--uri", "u", "--project", "p")
    assert done == {"run": "first", "to": "mlflow", "rounds": 2}
    assert [name for name, _ in mlflow] == [
        *("set_tracking_uri", "set_experiment", "start_run", "log_params"),
        *("log_metrics", "log_metrics", "log_metrics", "end_run"),
    ]
    assert (mlflow[0][1], mlflow[1][1]) == (("u",), ("p",))


def test_an_option_of_the_other_tracker_is_refused(tmp_path: Path) -> None:
    record("one").write(tmp_path / "run.json")
    assert "--uri is MLflow's" in refusal(2, "track", tmp_path, "--to", "wandb", "--uri", "u")
    assert "--online is W&B's" in refusal(2, "track", tmp_path, "--to", "mlflow", "--online")


def test_wandb_stays_on_this_machine_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    opened = SimpleNamespace(log=lambda *a, **k: None, finish=lambda: None, summary={})
    module = SimpleNamespace(init=lambda **named: modes.append(named["mode"]) or opened)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for online in (False, True):
        tracker = WandbTracker("p", online)
        tracker.begin("one", {})
        tracker.log(1, {"loss": 1.0})
        tracker.end({"f1": 0.5})
    assert modes == ["offline", "online"]
    assert opened.summary == {"f1": 0.5}


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    record("one").write(tmp_path / "run.json")
    assert "pip install wandb" in refusal(2, "track", tmp_path, "--to", "wandb")
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "completed"
