# SPDX-License-Identifier: Apache-2.0
"""The encoder baseline at one site: what travels, what learning is worth, what its result folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.core.errors import ConfigError, DataError
from medflare.core.hints import InfluenceHint, RoundHints
from medflare.core.plan import RoundPlan
from medflare.data.settings.site import SiteConfig
from medflare.learners.token_classification.learner import TokenClassificationLearner, build
from medflare.recipes import after_run
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from medflare.tasks.extraction.evaluation import score_result
from medflare.tasks.extraction.result_folder import load_tagger, open_result
from medflare.tasks.prediction_files import read_documents
from site_builders import site_config, write_result

SMALL: dict[str, Any] = {"optimiser": {"batch": 16, "lr": 3e-3}, "local_epochs": 1, "eval_batch": 32}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notes_hospital(NOTE_HOSPITALS[0], tmp_path_factory.mktemp("notes") / "own", 30, "jsonl")


@pytest.fixture(scope="module")
def site(hospital: Path, tiny_encoder: Path) -> SiteConfig:
    others = write_notes_hospital(NOTE_HOSPITALS[1], hospital.parent / "validation", 3, "jsonl")
    shared = {"format": "notes_jsonl", "root": str(others)}
    return site_config("notes_jsonl", hospital, tiny_encoder, validation=shared)


@pytest.fixture
def learner(site: SiteConfig) -> TokenClassificationLearner:
    site_learner = build(SMALL, site, 0)
    site_learner.load_shared(site_learner.initial_shared())
    return site_learner


def test_rounds_without_steps_visit_every_example_as_often_as_epochs_say(site: SiteConfig) -> None:
    site_learner = build(SMALL | {"local_epochs": 2}, site, 0)
    taken = site_learner._round_rows(RoundPlan(round=0, rounds=1))
    assert sorted(taken) == sorted([*range(len(site_learner.train_rows))] * 2)


def test_a_site_weighs_its_own_update_by_the_shared_notes(learner: TokenClassificationLearner) -> None:
    update = learner.fit(
        RoundPlan(
            round=0,
            rounds=1,
            steps=20,
            hints=RoundHints(influence=InfluenceHint(temperature=1.0, clip=2.0)),
        )
    )
    assert learner.describe().to_json()["validation"]["notes"] == 3
    assert update.metrics["shared_loss"] < 3.5
    assert 1 < update.factor < 7.4


def test_random_words_cannot_be_frozen(site: SiteConfig) -> None:
    without = site.model_copy(update={"backbone": site.backbone.model_copy(update={"folder": None})})
    with pytest.raises(ConfigError, match=r"backbone\.folder in site\.yaml"):
        build({"freeze_words": True}, without, 0)


@pytest.fixture(scope="module")
def trained(site: SiteConfig) -> TokenClassificationLearner:
    site_learner = build(SMALL | {"local_epochs": 4}, site, 0)
    site_learner.load_shared(site_learner.initial_shared())
    before = site_learner.evaluate("val", RoundPlan(round=0, rounds=1))
    update = site_learner.fit(RoundPlan(round=0, rounds=1))
    after = site_learner.evaluate("val", RoundPlan(round=0, rounds=1))
    assert after["loss"] < 0.5 * before["loss"]
    assert update.metrics["loss"] > 0
    return site_learner


@pytest.fixture(scope="module")
def result(trained: TokenClassificationLearner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return write_result(folder, trained, method="token_classification", base_model="tiny-bert")


def test_learning_finds_most_of_what_is_plain(trained: TokenClassificationLearner, tmp_path: Path) -> None:
    record = trained.finish(RoundPlan(round=0, rounds=1), tmp_path)[0]
    assert record.metrics["ner_lenient_f1"].value > 0.5
    assert record.metrics["re_gold_lenient_f1"].value > 0.1
    assert record.metrics["parse_failure_rate"].value == 0
    assert len(read_documents(tmp_path / str(record.predictions))) == record.studies


def test_a_result_folder_answers_as_the_site_does(
    trained: TokenClassificationLearner, result: Path, tiny_encoder: Path
) -> None:
    opened = load_tagger(result, backbone=tiny_encoder, precision="fp32")
    notes = trained.records("test")[:3]
    assert opened.documents(notes, "s", "generic") == trained.predictor.documents(notes, "s", "generic")


def test_a_result_folder_is_tested_on_another_site(result: Path, site: SiteConfig, tmp_path: Path) -> None:
    assert after_run.tester(result) is score_result
    outcome = after_run.tester(result)(
        result, site, role="unseen", adapter=None, split="val", folder=tmp_path, seed=0
    )
    assert (outcome.adapter, outcome.role) == ("generic", "unseen")
    assert outcome.metrics["ner_lenient_f1"].value > 0.3


def test_a_result_folder_that_does_not_fit_is_refused(
    result: Path, tiny_encoder: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no part is personalised"):
        open_result(result, personalised=tmp_path, backbone=tiny_encoder)
    with pytest.raises(DataError, match=r"neither extraction\.json nor token_classification\.json"):
        open_result(tmp_path)
    (tmp_path / "report_generator.json").write_text("{}")
    with pytest.raises(ConfigError, match="medflare generate"):
        open_result(tmp_path)


def test_another_encoder_is_refused(result: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(1)
    other = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_encoder))
    other.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="was trained on backbone 'tiny-bert'"):
        open_result(result, backbone=tmp_path)


def test_without_a_folder_the_encoder_is_new_and_of_one_kind_at_all_sites(
    site: SiteConfig, tmp_path: Path
) -> None:
    without = site.model_copy(update={"backbone": site.backbone.model_copy(update={"folder": None})})
    shape = {"layers": 1, "width": 32, "attention_heads": 2}
    first, second = (build(SMALL | {"encoder": shape}, without, seed) for seed in (0, 1))
    assert first.describe().backbone == second.describe().backbone
    assert first.describe().backbone.name == "medflare-new-encoder"
    wider = build(SMALL | {"encoder": shape | {"width": 64}}, without, 0)
    assert wider.tagger.text.fingerprint != first.tagger.text.fingerprint
    opened = load_tagger(write_result(tmp_path, first), precision="fp32")
    notes = first.records("val")[:1]
    assert opened.documents(notes, "s", "generic") == first.predictor.documents(notes, "s", "generic")


def test_a_width_that_heads_cannot_share_is_said(site: SiteConfig) -> None:
    without = site.model_copy(update={"backbone": site.backbone.model_copy(update={"folder": None})})
    with pytest.raises(ConfigError, match=r"width is 50, expected a multiple of attention_heads \(4\)"):
        build({"encoder": {"width": 50}}, without, 0)
