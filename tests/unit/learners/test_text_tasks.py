# SPDX-License-Identifier: Apache-2.0
"""Question answering and summarisation at one site: what is declared, a round, a restart, the final test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from text_task_sites import METHODS, PLAN, make, questions, site, write_site

from medflare.core.errors import DataError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.learners import registry
from medflare.models.adapters.base import GENERIC
from medflare.tasks.prediction_files import read_answers, read_summaries

SHORT = {"writing": {"max_new_tokens": 6}}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(tmp_path: Path, method: str) -> Path:
    return write_site(tmp_path, method)


@pytest.fixture
def learner(place: Path, method: str, tiny_backbone: Path) -> Any:
    return make(method, site(place, method, tiny_backbone))


def test_the_table_of_learners_says_what_they_read() -> None:
    tasks = [registry.task_of(method) for method in METHODS]
    assert [task.reads for task in tasks] == ["questions", "summaries"]
    assert {task.embedded_backbone for task in tasks} == {"notes_decoder"}
    assert registry.task_of("fedmrg").embedded_backbone == "decoder"


def test_a_round_is_judged_by_scores_of_the_validation_split(learner: Any, method: str) -> None:
    metrics = learner.evaluate("val", RoundPlan(round=0, rounds=1, limit=2))
    telling = {"question_answering": {"accuracy", "margin"}, "summarisation": {"bleu_4", "rouge_l"}}
    assert {"loss", *telling[method]} <= set(metrics)
    assert set(learner.evaluate("val", RoundPlan(round=0, rounds=1, limit=0))) == {"loss"}


def test_a_site_without_training_records_says_so(tmp_path: Path, tiny_backbone: Path) -> None:
    rows = [row | {"split": "test"} for row in questions()]
    root = write_site(tmp_path, "question_answering", rows=rows)
    learner = make("question_answering", site(root, "question_answering", tiny_backbone))
    with pytest.raises(UpdateError, match=r"site 'site-1' has no training example"):
        learner.fit(PLAN)


# ---- the final test ---------------------------------------------------------------------------------------


def test_questions_are_kept_with_every_score_and_counted(tmp_path: Path, tiny_backbone: Path) -> None:
    root = write_site(tmp_path, "question_answering")
    learner = make("question_answering", site(root, "question_answering", tiny_backbone))
    (record,) = learner.finish(PLAN, tmp_path / "kept")
    answers = read_answers(tmp_path / "kept" / str(record.predictions))
    scores = learner.predictor.score(learner.records("test"))
    assert [tuple(item.scores.values()) for item in answers] == [one.options for one in scores]
    assert record.studies == len(answers) == len(learner.records("test"))
    right = sum(item.right for item in answers) / len(answers)
    estimate = record.metrics["accuracy"]
    assert estimate.value == pytest.approx(right)
    assert estimate.low <= right <= estimate.high
    assert record.metrics["chance"].value == pytest.approx(1 / 3)
    assert "fewer than 5 questions" in record.skipped_metrics["accuracy/"]


def test_summaries_are_kept_with_their_sources_and_scored(tmp_path: Path, tiny_backbone: Path) -> None:
    root = write_site(tmp_path, "summarisation")
    learner = make("summarisation", site(root, "summarisation", tiny_backbone), **SHORT)
    (record,) = learner.finish(PLAN, tmp_path / "kept")
    summaries = read_summaries(tmp_path / "kept" / str(record.predictions))
    tested = learner.records("test")
    assert [(item.source, item.reference) for item in summaries] == [(s.source, s.target) for s in tested]
    assert {"bleu_1", "bleu_4", "rouge_l", "length_ratio", "label_f1"} <= set(record.metrics)
    assert "no local weights" in record.skipped_metrics["bertscore"]


def test_with_fedsa_the_sites_own_adapter_is_tested_and_stays(
    place: Path, method: str, tiny_backbone: Path, tmp_path: Path
) -> None:
    learner = make(method, site(place, method, tiny_backbone), sharing="fedsa")
    learner.fit(PLAN)
    (record,) = learner.finish(PLAN, tmp_path / "kept")
    assert (record.adapter, record.predictions) == ("personalised", "predictions_personalised.jsonl")
    local_factors = load_file(tmp_path / "kept/personalised/adapter_model.safetensors")
    assert all(
        torch.equal(value, local_factors[name])
        for name, value in learner.model.adapters.state(GENERIC).items()
    )


# ---- D_v --------------------------------------------------------------------------------------------------


def with_validation(tmp_path: Path, method: str, backbone: Path, number: int) -> Any:
    own, shared = write_site(tmp_path, method, 1), write_site(tmp_path / "shared", method, number)
    block = site(shared, method).cohort[0].model_dump(mode="json", include={"format", "root"})
    return make(method, site(own, method, backbone, validation=block))


def test_a_site_weighs_its_own_update_on_records_that_all_have(tmp_path: Path, tiny_backbone: Path) -> None:
    site_learner = with_validation(tmp_path, "question_answering", tiny_backbone, 2)
    validation = site_learner.describe().to_json()["validation"]
    assert (validation["notes"], len(validation["sha256"])) == (12, 64)
    hint = {"influence": {"temperature": 1.0, "clip": 5.0, "reference": 0}}
    plan = RoundPlan(round=0, rounds=2, steps=2, hints=RoundHints.from_json(hint))
    update = site_learner.fit(plan)
    assert update.factor != 1.0
    assert update.metrics["shared_loss"] > 0


def test_records_that_weigh_updates_must_not_be_trained_on(tmp_path: Path, tiny_backbone: Path) -> None:
    with pytest.raises(DataError, match=r"shared validation records are among the site's own: 'q1-"):
        with_validation(tmp_path, "question_answering", tiny_backbone, 1)
