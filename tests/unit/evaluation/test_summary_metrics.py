# SPDX-License-Identifier: Apache-2.0
"""Scores of summaries: those of reports where they mean the same, and what is left out with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from medflare.core.json_lines import write_lines
from medflare.evaluation.agreement import summary_agreement
from medflare.evaluation.report_metrics import report_statistics
from medflare.evaluation.summary_metrics import NO_LABELS, evaluate_summaries
from medflare.tasks.prediction_files import read_summaries
from record_builders import GENERATED, REFERENCES, written, written_for

SUMMARIES = written_for(REFERENCES, GENERATED)


def test_overlap_scores_are_those_of_reports() -> None:
    found, reports = (
        evaluate_summaries(SUMMARIES).estimates,
        report_statistics(REFERENCES, GENERATED),
    )
    for name in ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "sacrebleu"):
        assert found[name].value == pytest.approx(reports[name].value)
    assert found["length_ratio"].value == pytest.approx((3 + 3 + 0) / (4 + 3 + 5))


def test_a_perfect_summary_scores_one() -> None:
    estimates = evaluate_summaries(written_for(REFERENCES, REFERENCES)).estimates
    for name in ("bleu_4", "rouge_l", "label_f1", "length_ratio"):
        assert estimates[name].value == pytest.approx(1, abs=1e-6)


def test_an_empty_summary_affirms_nothing() -> None:
    gold = ["No acute disease.", "Mild edema.", "Mild edema."]
    estimates = evaluate_summaries(written_for(gold, ["", " . ", "Mild edema."])).estimates
    assert estimates["label_recall"].value == pytest.approx(1 / 3)


def test_labels_are_left_out_where_references_are_of_something_else() -> None:
    notes = ["Discharged on metformin.", "Follow-up with the surgeon.", "Wound is dry."]
    evaluation = evaluate_summaries(written_for(notes, notes))
    assert "label_f1" not in evaluation.estimates
    assert evaluation.skipped["label_f1"] == NO_LABELS


def test_bertscore_without_weights_is_left_out_with_the_reason(tmp_path: Path) -> None:
    assert "no local weights" in evaluate_summaries(SUMMARIES).skipped["bertscore"]
    given = evaluate_summaries(SUMMARIES, scorers={"bertscore": tmp_path / "nowhere"})
    assert "there is no" in given.skipped["bertscore"]
    assert set(given.skipped) <= {"bertscore", "meteor"}


def test_a_patients_texts_are_drawn_together() -> None:
    estimate = evaluate_summaries(SUMMARIES).estimates["rouge_l"]
    assert estimate.value > 0
    assert estimate.interval is None, "all three are of one patient"


def test_a_file_comes_back_as_it_was_written_for(tmp_path: Path) -> None:
    assert read_summaries(write_lines(tmp_path / "s.jsonl", SUMMARIES)) == SUMMARIES


@pytest.mark.parametrize(("generated", "score"), [("No acute disease.", 1), ("", 0)])
def test_a_summary_agrees_as_far_as_its_words_follow_the_reference(generated: str, score: float) -> None:
    assert summary_agreement([written(0, "No acute disease.", generated)]) == [pytest.approx(score)]
