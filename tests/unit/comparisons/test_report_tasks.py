# SPDX-License-Identifier: Apache-2.0
"""Comparisons of report generators: their places, and the rows that look at no image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medflare.core.data_order import DataOrder
from medflare.evaluation.predictions import Prediction
from medflare.tasks.prediction_files import read_predictions
from method_comparison.tasks.attacks import Attacks, AttackSettings
from method_comparison.tasks.base import ShownRow
from method_comparison.tasks.fedmrg import (
    FedMRG,
    FedMRGComparison,
    FedMRGMethod,
    learner_settings,
    limited,
    predict_rows,
)
from method_comparison.tasks.fedtar import FedTAR, VisitsSettings
from method_comparison.tasks.fedvit_gpt2 import FedViT, ViTSettings, swapped, worth_of_the_image

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


@pytest.mark.parametrize(
    ("task", "settings", "partition"),
    [
        (Attacks(), AttackSettings(), "clean"),
        (FedMRG(), FedMRGComparison(), "all"),
        (FedViT(), ViTSettings(), "synthetic"),
        (FedTAR(), VisitsSettings(), "synthetic"),
    ],
)
def test_a_unit_whose_predictions_are_not_there_has_no_places_and_no_notes(
    task: Any, settings: Any, partition: str, tmp_path: Path
) -> None:
    assert task.places(settings, partition, tmp_path) == {}
    row = ShownRow(title="Krum", settings=settings, folders={0: tmp_path})
    assert list(task.notes(partition, {"krum": row})) == []


def test_a_hospital_with_fewer_studies_visits_these_alone() -> None:
    learner = limited(SimpleNamespace(train_rows=list("abcdefgh"), order=DataOrder(8, seed=0)), 3)
    assert sorted(learner.order.take(6)) == [0, 0, 1, 1, 2, 2]
    assert learner.train_rows == ["a", "b", "c"]
    assert limited(learner, None).order.size == 3


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


def test_a_pretrained_decoder_trains_with_its_preset_and_the_jobs_encoder() -> None:
    embedded = learner_settings(FedMRGMethod())
    pretrained = learner_settings(FedMRGMethod(model="smollm2"))
    assert pretrained["model"]["encoder"] == embedded["model"]["encoder"]
    assert (pretrained["preset"], pretrained.get("lr")) == ("instruct", None), "the preset's own rate"
    assert "model" not in FedMRGMethod().model_dump(), "results from before it stay valid"


def test_a_site_without_such_studies_has_an_empty_file_of_predictions(tmp_path: Path) -> None:
    predict_rows(
        SimpleNamespace(
            use_generic=lambda: None, model=None, samples=None, settings=SimpleNamespace(decoding=None)
        ),
        "site-1",
        "generic",
        [],
        tmp_path,
    )
    assert read_predictions(tmp_path / "predictions_generic.jsonl") == []


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


@pytest.mark.parametrize(("looks", "gain"), [(True, 0.5), (False, 0.0)])
def test_what_the_image_is_worth_is_what_a_draft_loses_beside_another_patient(
    looks: bool, gain: float, tmp_path: Path
) -> None:
    for site in ("site-1", "site-2"):
        own = [study(site, i, REPORTS[i % 3] if looks else REPORTS[0]) for i in range(12)]
        codes = {REPORTS[i]: tuple(int(k == i) for k in range(14)) for i in range(3)}
        own = [item.model_copy(update={"predicted_codes": codes[item.generated]}) for item in own]
        write(tmp_path / site / "predictions_generic.jsonl", own)
    found = worth_of_the_image(tmp_path)
    assert found["gain"] == pytest.approx(found["seen_f1"] - found["swapped_f1"])
    assert found["gain"] >= gain if looks else found["gain"] == pytest.approx(0.0, abs=1e-9)
    assert found["distinct"] == pytest.approx((3 if looks else 1) / 24)


def test_a_draft_is_swapped_with_that_of_another_patient() -> None:
    items = studies("site-1", 12)
    assert items[0].patient_id == items[1].patient_id
    assert swapped(items, 0).generated == items[2].generated
    assert swapped(items, 0).reference == items[0].reference
    assert swapped(items[:1], 0) == items[0], "nobody else is there"
