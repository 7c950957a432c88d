# SPDX-License-Identifier: Apache-2.0
"""Scores of summaries: those of reports where they mean the same, and what is left out with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from medflare.core.json_lines import write_lines
from medflare.evaluation.report_metrics import report_statistics
from medflare.evaluation.summary_metrics import (
    NO_LABELS,
    WrittenSummary,
    evaluate_summaries,
    read_summaries,
)

GOLD = ["Large left pleural effusion.", "No acute disease.", "Mild cardiomegaly with pulmonary edema."]
SAID = ["Left pleural effusion.", "No acute disease.", ""]


def written(gold: list[str], said: list[str]) -> list[WrittenSummary]:
    return [
        WrittenSummary(
            summary_id=f"s{n}",
            patient_id="p",
            site="north",
            adapter="generic",
            source="The <heart> ...",
            reference=reference,
            generated=generated,
            ended=n != 1,
        )
        for n, (reference, generated) in enumerate(zip(gold, said, strict=True))
    ]


def test_overlap_scores_are_those_of_reports() -> None:
    found, reports = evaluate_summaries(written(GOLD, SAID)).estimates, report_statistics(GOLD, SAID)
    for name in ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "sacrebleu"):
        assert found[name].value == pytest.approx(reports[name].value)
    assert found["length_ratio"].value == pytest.approx((3 + 3 + 0) / (4 + 3 + 5))


def test_a_perfect_summary_scores_one() -> None:
    found = evaluate_summaries(written(GOLD, GOLD)).estimates
    for name in ("bleu_4", "rouge_l", "label_f1", "length_ratio"):
        assert found[name].value == pytest.approx(1, abs=1e-6)


def test_an_empty_summary_affirms_nothing() -> None:
    gold = ["No acute disease.", "Mild edema.", "Mild edema."]
    found = evaluate_summaries(written(gold, ["", " . ", "Mild edema."])).estimates
    assert found["label_recall"].value == pytest.approx(1 / 3)


def test_labels_are_left_out_where_references_are_of_something_else() -> None:
    notes = ["Discharged on metformin.", "Follow-up with the surgeon.", "Wound is dry."]
    found = evaluate_summaries(written(notes, notes))
    assert "label_f1" not in found.estimates
    assert found.skipped["label_f1"] == NO_LABELS


def test_bertscore_without_weights_is_left_out_with_the_reason(tmp_path: Path) -> None:
    assert "no local weights" in evaluate_summaries(written(GOLD, SAID)).skipped["bertscore"]
    given = evaluate_summaries(written(GOLD, SAID), scorers={"bertscore": tmp_path / "nowhere"})
    assert "there is no" in given.skipped["bertscore"]
    assert set(given.skipped) <= {"bertscore", "meteor"}


def test_a_patients_texts_are_drawn_together() -> None:
    estimate = evaluate_summaries(written(GOLD, SAID)).estimates["rouge_l"]
    assert estimate.low == estimate.high == estimate.value, "all three are of one patient"


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    items = written(GOLD, SAID)
    assert read_summaries(write_lines(tmp_path / "s.jsonl", items)) == items
