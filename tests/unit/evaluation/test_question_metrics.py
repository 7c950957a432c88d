# SPDX-License-Identifier: Apache-2.0
"""Accuracy of answers with intervals and by group, and their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medflare.core.errors import DataError
from medflare.core.json_lines import write_lines
from medflare.egress.declaration import METRIC
from medflare.evaluation import question_metrics
from medflare.evaluation.agreement import option_shares
from medflare.evaluation.question_metrics import evaluate_questions, quick_question_metrics
from medflare.tasks.prediction_files import read_answers
from record_builders import QUESTIONS, answered


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_metrics, "FEWEST", 2)
    evaluation = evaluate_questions(QUESTIONS)
    values = {name: item.value for name, item in evaluation.estimates.items()}
    assert values == pytest.approx(
        {
            "accuracy": 3 / 4,
            "accuracy/lung": 1 / 2,
            "accuracy/heart": 1,
            "chance": 1 / 3,
            "margin": (2 - 2 + 2 + 2) / 4,
            "cut_rate": 1 / 4,
        }
    )
    assert not evaluation.skipped


def test_groups_have_plain_names_and_small_ones_are_not_told() -> None:
    many = [answered(n, "A", "A", "Gynaecology & Obstetrics") for n in range(5)]
    evaluation = evaluate_questions([*many, answered(9, "A", "A", "Dental")])
    groups = [name for name in evaluation.estimates if "/" in name]
    assert groups == ["accuracy/gynaecology obstetrics"]
    assert all(METRIC.fullmatch(name) for name in evaluation.estimates)
    assert evaluation.skipped == {"accuracy/": "1 groups of fewer than 5 questions, or beyond 40"}


def test_the_interval_is_the_bootstrap_over_questions() -> None:
    many = [answered(n, "A", "A" if n % 4 else "B") for n in range(200)]
    estimate = evaluate_questions(many).estimates["accuracy"]
    rng = np.random.default_rng(5)
    drawn = rng.choice([float(item.right) for item in many], size=(4000, 200)).mean(axis=1)
    assert [estimate.low, estimate.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.015)


def test_questions_without_groups_have_no_scores_by_group() -> None:
    evaluation = evaluate_questions([answered(1, "A", "A"), answered(2, "A", "B")])
    assert not [name for name in evaluation.estimates if "/" in name]
    assert evaluation.skipped == {"accuracy/": "the questions name no group"}


def test_curves_have_plain_numbers() -> None:
    assert quick_question_metrics(QUESTIONS) == {"accuracy": 0.75, "margin": 1.0}


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_answers(write_lines(tmp_path / "kept/answers.jsonl", QUESTIONS)) == QUESTIONS


def test_a_line_that_is_no_answer_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "answers.jsonl", QUESTIONS)
    path.write_text(path.read_text().replace('"chosen":"C"', '"chosen":"D"'))
    with pytest.raises(DataError, match=r"(?s)answers\.jsonl:3: is not an answered question.*letters"):
        read_answers(path)


def test_shares_of_options_sum_to_one_also_where_likelihoods_vanish() -> None:
    assert option_shares([-1.0, -1.0]) == [0.5, 0.5]
    assert option_shares([-2000.0, -2010.0])[0] == pytest.approx(1 / (1 + np.exp(-10)))
