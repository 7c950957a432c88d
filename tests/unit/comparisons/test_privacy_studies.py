# SPDX-License-Identifier: Apache-2.0
"""Comparisons of private training and of membership attacks: rows differ in what they say alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.core.errors import ConfigError
from medflare.core.patient_privacy import Mechanism
from medflare.differential_privacy.accounting import epsilon
from method_comparison.configuration import Configuration, Selection
from method_comparison.result import ResultStore
from method_comparison.runner import Comparison, run_units
from method_comparison.tasks.private_training import (
    DELTA,
    IMPRESSIONS,
    NOTES,
    PrivateMethod,
    PrivateSettings,
    PrivateTraining,
    make_learners,
    privacy,
    records_of,
    right_answers,
)

SMALL = {"sites": 1, "patients": 6, "batch": 3, "rounds": 1, "steps": 1, "test": 1, "questions": 6}


def values(task: str, partition: str, settings: dict[str, Any], rows: dict[str, Any], out: Path) -> Any:
    """Train the rows of a comparison with one seed; return what was measured of each."""
    methods = {name: {"title": name, "settings": own} for name, own in rows.items()}
    whole = {
        "schema_version": 1,
        "task": task,
        "title": "x",
        "partitions": [partition],
        "seeds": [0],
        "reference": next(iter(rows)),
        "settings": settings,
        "methods": methods,
    }
    comparison = Comparison.of("x", Configuration.model_validate(whole), Selection())
    assert not run_units(comparison, out).failed
    found = comparison.results(ResultStore(out, "x"))
    return {method: result.values for (_, method, _), result in found.items()}


def test_noise_is_what_epsilon_asks_for() -> None:
    settings = PrivateSettings(patients=40, batch=10, rounds=2, steps=3)
    for wanted in (8.0, 1.0):
        dp = privacy(settings, PrivateMethod(private=True, epsilon=wanted))
        assert dp is not None
        done = [Mechanism(noise=dp.noise_multiplier, rate=0.25, steps=6)]
        assert 0.95 * wanted < epsilon(done, DELTA) <= wanted
    clipped = privacy(settings, PrivateMethod(private=True))
    assert clipped is not None
    assert (clipped.clip_norm, clipped.sample_rate) == (1.0, 0.25)
    assert clipped.noise_multiplier < 1e-6
    assert privacy(settings, PrivateMethod()) is None


def test_rows_begin_alike_and_noise_moves_the_adapter(tmp_path: Path) -> None:
    rows = {
        "before": {"trained": False},
        "ordinary": {},
        "clipped": {"private": True},
        "noise": {"private": True, "epsilon": 1.0},
    }
    found = values("private_training", NOTES, SMALL, rows, tmp_path)
    assert found["before"]["gained"] == 0
    starts = {row["loss"] + row["gained"] for row in found.values()}
    assert max(starts) - min(starts) < 1e-9
    losses = {name: row["loss"] for name, row in found.items()}
    assert len(set(losses.values())) == len(losses)
    assert ("noise" in found["noise"], "noise" in found["clipped"]) == (True, False)
    assert "seconds" not in found["before"]


def test_an_answer_is_right_where_greedy_decoding_writes_it(tmp_path: Path) -> None:
    settings = PrivateSettings.model_validate(SMALL)
    PrivateTraining().prepare(settings, NOTES, 0, tmp_path)
    learner = make_learners(settings, NOTES, 0, records_of(tmp_path, NOTES, 0), None)["site-1"]
    learner.load_shared(learner.initial_shared())
    learner.use()
    model, rows = learner.model, list(learner.val_rows)[:24]

    def written(row: Any) -> bool:
        ids = list(row.ids[: row.start])
        with torch.no_grad(), model.evaluating():
            while len(ids) < len(row.ids):
                ids.append(int(model.backbone.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        return ids == list(row.ids)

    expected = [written(row) for row in rows]
    assert 0 < sum(expected) < len(rows)
    assert right_answers(learner, rows, batch=5) == sum(expected) / len(rows)


def test_no_held_out_findings_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "iu_reports"
    folder.mkdir(parents=True)
    reports = [{"uid": f"{i}", "findings": "word " * (6 + i % 4), "impression": "clear"} for i in range(60)]
    reports += [{"uid": "none", "findings": None, "impression": "clear"}]
    (folder / "reports_dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reports))
    monkeypatch.setenv("MEDFLARE_DATA", str(tmp_path / "data"))
    settings = PrivateSettings(patients=10, questions=5)
    used: dict[tuple[int, str, str], list[str]] = {}
    for seed in (0, 1):
        PrivateTraining().prepare(settings, IMPRESSIONS, seed, tmp_path)
        for part in ("train", "test"):
            for site in ("site-1", "site-2"):
                file = records_of(tmp_path, IMPRESSIONS, seed) / part / site / "rows.jsonl"
                rows = [json.loads(line) for line in file.read_text().splitlines()]
                assert all(len(row["findings"].split()) >= 8 for row in rows)
                used[seed, part, site] = [row["patient_id"] for row in rows]
    for seed in (0, 1):
        parts = [
            *used[seed, "train", "site-1"],
            *used[seed, "train", "site-2"],
            *used[seed, "test", "site-1"],
        ]
        assert len(set(parts)) == len(parts) == 25


def test_an_adapter_before_training_tells_nothing_and_a_trained_one_does(tmp_path: Path) -> None:
    rows = {"before": {"rounds": 0}, "after": {"rounds": 1, "shadows": 4}}
    found = values("membership", "all", {"notes": 3}, rows, tmp_path)
    assert found["before"] == {"loss_auc": 0.5, "loss_found": 0.0, "one_auc": 0.5, "one_found": 0.0}
    assert found["after"]["loss_auc"] > 0.8
    assert set(found["after"]) == {
        f"{attack}_{kind}" for attack in ("loss", "one", "online", "offline") for kind in ("auc", "found")
    }


def test_an_odd_number_of_shadows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="each note is in half of them"):
        values("membership", "all", {"notes": 4}, {"odd": {"rounds": 1, "shadows": 3}}, tmp_path)
