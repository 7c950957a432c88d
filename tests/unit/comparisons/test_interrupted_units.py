# SPDX-License-Identifier: Apache-2.0
"""A unit that was interrupted goes on after its last whole round and ends as one that was not."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medflare.in_process.checkpoint import LoopCheckpoint
from method_comparison import progress
from method_comparison.configuration import Configuration, Selection
from method_comparison.progress import UnitProgress
from method_comparison.result import Result, ResultStore
from method_comparison.runner import Comparison, run_units
from method_comparison.tasks.extraction_cohorts import Synthetic

EXTRACTION = {
    "task": "extraction",
    "partitions": ["synthetic"],
    "settings": {"rounds": 3, "train": 2, "test": 1},
    "methods": {
        "plain": {"title": "a server's momentum, compressed", "settings": {"rule": "fedavgm", "up": "int8"}},
        "single": {"title": "each site alone", "settings": {"mode": "single", "rounds": 1}},
    },
}
VISITS = {
    "task": "fedtar",
    "partitions": ["synthetic"],
    "settings": {
        "visits": 2,
        "rounds": 2,
        "passes": 0.5,
        "training": [12, 12],
        "validation": 3,
        "tested": 3,
        "taught": 3,
        "teaching_steps": 1,
    },
    "methods": {"plain": {"title": "FedTAR", "settings": {"rule_settings": {"lr": 0.01}}}},
}


def comparison_of(given: dict[str, Any], method: str) -> Comparison:
    """Return a comparison of one method and seed."""
    whole = {"schema_version": 1, "title": "x", "seeds": [0], "reference": "plain", **given}
    return Comparison.of("x", Configuration.model_validate(whole), Selection(methods=(method,)))


def interrupt_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let the user press Ctrl-C when so many rounds have been kept."""
    write, left = LoopCheckpoint.write, [writes]

    def counted(self: LoopCheckpoint, *args: Any) -> None:
        write(self, *args)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(LoopCheckpoint, "write", counted)


@pytest.fixture(autouse=True)
def _one_tested_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test on the notes of one place."""
    tests = Synthetic.tests
    monkeypatch.setattr(Synthetic, "tests", lambda self, folder: dict([*tests(self, folder).items()][:1]))


def result_of(comparison: Comparison, out: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a unit's result and the text of its other files, without seconds."""
    (unit,) = comparison.results(ResultStore(out, "x")).items()
    folder = ResultStore(out, "x").unit_folder(*unit[0])
    files = {
        path.relative_to(folder).as_posix(): re.sub(r'"seconds": [0-9.]+', "", path.read_text())
        for path in sorted(folder.rglob("*.json*"))
        if path.name != "result.json" and "cache" not in path.parts
    }
    assert not (folder / progress.FOLDER).exists()
    return Result.model_dump(unit[1], exclude={"seconds"}), files


@pytest.mark.parametrize(
    ("given", "method", "after"), [(EXTRACTION, "plain", 2), (EXTRACTION, "single", 2), (VISITS, "plain", 3)]
)
def test_an_interrupted_unit_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], method: str, after: int
) -> None:
    comparison, said = comparison_of(given, method), list[str]()
    run_units(comparison, tmp_path / "whole")
    with monkeypatch.context() as patched:
        interrupt_after(patched, after)
        with pytest.raises(KeyboardInterrupt):
            run_units(comparison, tmp_path / "two")
    trained = list[int]()
    with monkeypatch.context() as patched:
        write = LoopCheckpoint.write

        def counted(self: LoopCheckpoint, rounds_done: int, *args: Any) -> None:
            trained.append(rounds_done)
            write(self, rounds_done, *args)

        patched.setattr(LoopCheckpoint, "write", counted)
        run_units(comparison, tmp_path / "two", say=said.append)
    assert "goes on after" in said[0]
    assert len(trained) + after == (4 if given is VISITS else 3), "no round twice"
    assert result_of(comparison, tmp_path / "two") == result_of(comparison, tmp_path / "whole")


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the .partial folder of an interrupted unit."""
    with monkeypatch.context() as patched:
        interrupt_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            run_units(comparison_of(EXTRACTION, "plain"), tmp_path)
    return tmp_path / "x" / "synthetic" / "plain" / "0.partial"


def test_progress_of_another_program_or_of_other_settings_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = interrupted(tmp_path, monkeypatch)
    fingerprint = comparison_of(EXTRACTION, "plain").fingerprint("plain")
    kept = json.loads((partial / progress.FOLDER / "progress.json").read_text())
    same = UnitProgress(partial, fingerprint)
    assert same.goes_on
    assert same.seconds() >= kept["seconds"] >= 0
    assert (same.folder / "all.safetensors").is_file()
    with monkeypatch.context() as patched:
        patched.setattr(progress, "program", lambda: "another")
        assert not UnitProgress(partial, fingerprint).goes_on
    assert not (partial / progress.FOLDER / "all.safetensors").exists()


def test_other_settings_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = interrupted(tmp_path, monkeypatch)
    assert not UnitProgress(partial, "other settings").goes_on
    assert [path.name for path in partial.iterdir()] == [progress.FOLDER]


def test_progress_of_other_inputs_is_thrown_away(tmp_path: Path) -> None:
    model, unit = tmp_path / "model", tmp_path / "unit"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")

    def goes_on(*inputs: Path) -> bool:
        progress = UnitProgress(unit, "settings", inputs=inputs)
        kept = progress.goes_on
        LoopCheckpoint(progress.folder / "all.safetensors").write(1, {}, {})
        return kept

    assert [goes_on(model), goes_on(model)] == [False, True]
    (model / "model.safetensors").write_bytes(b"other weights under the same name")
    assert [goes_on(model), goes_on(model)] == [False, True]
    (model / "image.png").write_bytes(b"a radiograph more")
    assert [goes_on(model), goes_on(model)] == [False, True]
    assert not goes_on(), "nor is it that of a unit that trains the embedded model"


def test_a_unit_names_the_model_that_it_trains_and_is_left_out_where_it_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEDFLARE_MODELS", str(tmp_path / "models"))
    said: list[str] = []
    monkeypatch.setenv("MEDFLARE_DATA", str(tmp_path))
    big = {"model": "big"}
    for task, partition, settings, own in (
        ("fedmrg", "all", {}, big),
        ("real_notes", "all_notes", {}, {}),
        ("extraction", "synthetic", big, {}),
        ("private_training", "notes", big, {}),
        *((task, "real", {}, {}) for task in ("fedmrg", "fedtar", "fedvit_gpt2")),
    ):
        given = {"task": task, "partitions": [partition], "settings": settings}
        given["methods"] = {"plain": {"title": "x", "settings": own}}
        not_trained = run_units(comparison_of(given, "plain"), tmp_path / "out", say=said.append)
        assert not_trained.left_out == [f"{partition} plain seed 0"]
    assert all("left out: " in line for line in said)
    assert not list((tmp_path / "out").rglob("*.partial"))


def test_a_model_that_is_away_for_a_while_costs_no_trained_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEDFLARE_MODELS", str(tmp_path / "models"))
    given = {"task": "real_notes", "partitions": ["all_notes"], "settings": {}}
    given["methods"] = {"plain": {"title": "x", "settings": {}}}
    comparison = comparison_of(given, "plain")
    partial = tmp_path / "x" / "all_notes" / "plain" / "0.partial"
    kept = partial / progress.FOLDER / "all.safetensors"
    LoopCheckpoint(kept).write(1, {}, {})
    assert run_units(comparison, tmp_path, say=lambda line: None).left_out
    assert kept.is_file()


def test_what_a_failure_left_is_no_part_of_the_unit(tmp_path: Path) -> None:
    for kept in (False, True):
        UnitProgress(tmp_path / "unit", "settings").folder.mkdir(exist_ok=True)
        (tmp_path / "unit" / progress.ERROR).write_text("no convergence")
        (tmp_path / "unit" / "predictions.jsonl").write_text("half of them")
        if kept:
            LoopCheckpoint(tmp_path / "unit" / progress.FOLDER / "all.safetensors").write(1, {}, {})
        assert UnitProgress(tmp_path / "unit", "settings").goes_on is kept
        assert not (tmp_path / "unit" / progress.ERROR).exists()
        assert (tmp_path / "unit" / "predictions.jsonl").exists() is kept


def test_a_damaged_checkpoint_costs_a_round_and_two_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    comparison = comparison_of(EXTRACTION, "plain")
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        with pytest.raises(KeyboardInterrupt):
            run_units(comparison, tmp_path)
    folder = tmp_path / "x" / "synthetic" / "plain" / "0.partial" / progress.FOLDER
    newest, before = folder / "all.safetensors", folder / "all.safetensors.previous"
    newest.write_bytes(newest.read_bytes()[:-100])
    assert found(newest) == 1
    before.write_bytes(b"")
    assert found(newest) is None
    assert "The training begins anew" in caplog.text


def found(path: Path) -> int | None:
    """Return the rounds that a checkpoint says are done."""
    kept = LoopCheckpoint(path).read()
    return None if kept is None else kept[0]


def test_the_program_is_the_code_and_the_jobs_and_no_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "CODE", (tmp_path,))

    def digest() -> str:
        progress.program.cache_clear()
        return progress.program()

    (tmp_path / "loop.py").write_text("x = 1")
    first = digest()
    (tmp_path / "README.md").write_text("words")
    assert digest() == first
    (tmp_path / "loop.py").write_text("x = 2")
    assert digest() != first
    progress.program.cache_clear()


def test_a_command_whose_time_is_over_stops_after_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison, said = comparison_of(EXTRACTION, "plain"), list[str]()
    # The command has an hour when it begins the unit, and the first round takes two.
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 7200, process_time=time.process_time)
    monkeypatch.setattr(progress, "time", later)
    trained = run_units(comparison, tmp_path, ends=time.monotonic() + 3600, say=said.append)
    assert said == ["synthetic plain seed 0: stopped, as the time is over; the same command goes on with it."]
    assert not trained.failed
    partial = tmp_path / "x" / "synthetic" / "plain" / "0.partial"
    assert found(partial / progress.FOLDER / "all.safetensors") == 1
    said.clear()
    run_units(comparison, tmp_path, ends=time.monotonic() - 1, say=said.append)
    assert said == ["stopped, as the time is over; the same command goes on."]
