# SPDX-License-Identifier: Apache-2.0
"""Comparisons of report generators: their places, and the rows that look at no image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from medflare.evaluation.predictions import Prediction
from method_comparison.tasks import fedvit_gpt2
from method_comparison.tasks.base import ShownRow
from method_comparison.tasks.fedmrg import FedMRG, FedMRGComparison
from method_comparison.tasks.fedvit_gpt2 import FedViT, ViTSettings, predict_tests

REPORTS = ("the heart is enlarged", "the lungs are clear", "there is a small left effusion")


def study(site: str, number: int, generated: str) -> Prediction:
    codes = tuple(int(i == number % 3) for i in range(14))
    return Prediction(
        study_id=f"{site}-{number}",
        patient_id=f"p{number // 2}",
        site=site,
        adapter="generic",
        reference=REPORTS[number % 3],
        generated=generated,
        gold_codes=codes,
        predicted_codes=codes if generated == REPORTS[number % 3] else (0,) * 14,
    )


def studies(site: str, right: int) -> list[Prediction]:
    """Twelve studies, of which so many are written as the radiologist did."""
    return [study(site, i, REPORTS[i % 3] if i < right else "nothing") for i in range(12)]


def write(path: Path, items: Sequence[Prediction]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(item.model_dump_json() + "\n" for item in items))


def test_fedmrgs_places_take_the_personalised_adapter_where_there_is_one(tmp_path: Path) -> None:
    for site in ("site-1", "site-2", "site-3"):
        write(tmp_path / site / "predictions_generic.jsonl", studies(site, 3))
        write(tmp_path / site / "predictions_personalised.jsonl", studies(site, 9))
    write(tmp_path / "hospital-4" / "predictions_generic.jsonl", studies("hospital-4", 6))
    found = FedMRG().places(FedMRGComparison(), "all", tmp_path)
    own = found["participants, personalised adapter if there is one"]
    assert own.scores["label_f1"].value > found["participants, generic adapter"].scores["label_f1"].value
    assert len(set(own.groups_of("label_f1"))) == 18, "six patients of each of three sites"
    assert len(found) == 3, "no place for γ_mix = 0 and validation, which this unit has not"


def test_a_local_models_unseen_score_is_the_mean_over_the_models(tmp_path: Path) -> None:
    for site, right in (("site-1", 12), ("site-2", 0), ("site-3", 6)):
        write(tmp_path / site / "predictions_generic.jsonl", studies(site, 3))
        write(tmp_path / f"{site}-hospital-4" / "predictions_generic.jsonl", studies("hospital-4", right))
    run = FedMRG().places(FedMRGComparison(), "all", tmp_path)["unseen hospital, mean over local models"]
    assert len(run.scores["label_f1"]) == 12
    assert run.scores["label_f1"].value == pytest.approx(0.5)


def test_fedvits_notes_say_what_looks_at_no_image_and_whom_krum_chose(tmp_path: Path) -> None:
    for site in ("site-1", "site-2"):
        write(tmp_path / site / "predictions_generic.jsonl", studies(site, 2))
    (tmp_path / "rounds.json").write_text(json.dumps([{"owner": "", "rule": {"selected": ["site-2"]}}]))
    task = FedViT()
    assert list(task.places(ViTSettings(), "synthetic", tmp_path)) == [
        "all sites, pooled",
        "site-1",
        "site-2",
    ]
    row = ShownRow(title="Krum", settings=ViTSettings(), folders={0: tmp_path, 1: tmp_path})
    krum, constant = task.notes("synthetic", {"krum": row})
    assert krum == "Krum: 3 different reports. Chosen: site-2 2."
    assert constant.startswith("The most common report of each site, which looks at no image: BLEU-1 ")


def test_the_shuffled_control_has_every_report_at_another_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = studies("site-1", 12)
    monkeypatch.setattr(
        "medflare.tasks.reports.evaluation.predict",
        lambda *given: write(tmp_path / "predictions_generic.jsonl", items),
    )
    learner = SimpleNamespace(
        model=None,
        samples=SimpleNamespace(split_indices=lambda split: []),
        settings=SimpleNamespace(decoding=None),
    )
    predict_tests(learner, "site-1", 0, True, tmp_path)
    read = fedvit_gpt2.read_predictions(tmp_path / "predictions_generic.jsonl")
    assert [item.generated for item in read] == [item.generated for item in items[1:] + items[:1]]
    assert [item.reference for item in read] == [item.reference for item in items]
    assert [item.predicted_codes for item in read] == [item.predicted_codes for item in items[1:] + items[:1]]
