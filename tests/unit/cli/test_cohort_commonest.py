# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort commonest`: what one text for all scores, of each kind of record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from command_line import answer, facts, refusal

CLEAR, LARGE = "the lungs are clear .", "the heart is enlarged ."


def site_file(folder: Path, kind: str, rows: Sequence[dict[str, Any]]) -> Path:
    (folder / "s").mkdir(parents=True)
    (folder / "s" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "site.yaml"
    path.write_text(json.dumps({"name": "s", "cohort": {"format": kind, "root": "s"}}))
    return path


def summaries(*targets: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"id": f"r{i}", "patient_id": f"p{i}", "findings": f"seen {i}", "impression": text, "split": split}
        for i, (text, split) in enumerate(targets)
    ]


def test_the_commonest_training_summary_stands_for_every_draft(tmp_path: Path) -> None:
    rows = summaries(
        (CLEAR, "train"),
        (CLEAR, "train"),
        (LARGE, "train"),
        (CLEAR, "test"),
        (LARGE, "test"),
        (LARGE, "test"),
    )
    (row,) = facts("cohort", "commonest", site_file(tmp_path, "summaries_jsonl", rows))
    assert (row["site"], row["studies"], row["adapter"]) == ("s", 3, "none")
    right = row["metrics"]["rouge_l"]["value"]
    same = summaries((CLEAR, "train"), (CLEAR, "test"))
    (exact,) = facts("cohort", "commonest", site_file(tmp_path / "same", "summaries_jsonl", same))
    assert exact["metrics"]["rouge_l"]["value"] == pytest.approx(1.0)
    assert 1 / 3 < right < 1.0, "one of three is word for word, the others share 'the' and '.'"


def test_the_letter_that_is_right_most_often_answers_every_question(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"q{i}",
            "question": f"Which sign is number {i}?",
            "options": {"A": f"x{i}", "B": f"y{i}", "C": f"z{i}"},
            "answer": answer,
            "split": split,
        }
        for i, (answer, split) in enumerate(
            [*[("B", "train")] * 3, *[("A", "train")] * 2, *[("B", "test")] * 3, ("C", "test")]
        )
    ]
    (row,) = facts("cohort", "commonest", site_file(tmp_path, "questions_jsonl", rows))
    assert row["metrics"]["accuracy"]["value"] == pytest.approx(0.75)
    assert row["metrics"]["chance"]["value"] == pytest.approx(1 / 3)


def test_reports_have_labels_and_every_site_a_row(small_hospital: Path, tmp_path: Path) -> None:
    cohort = {"format": "manifest", "root": str(small_hospital)}
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps({"sites": {name: {"cohort": cohort} for name in ("north", "south")}}))
    rows = facts("cohort", "commonest", path)
    assert [row["site"] for row in rows] == ["north", "south"]
    for row in rows:
        assert {"bleu_4", "rouge_l", "label_f1"} <= set(row["metrics"])
    shown = answer("cohort", "commonest", path, "--site", "south")
    assert "south" in shown
    assert "north" not in shown


def test_what_cannot_be_scored_is_named(tmp_path: Path) -> None:
    path = site_file(tmp_path, "summaries_jsonl", summaries((CLEAR, "test")))
    assert "no record in the split 'train'" in refusal(3, "cohort", "commonest", path)
    assert "expected train, val, test" in refusal(2, "cohort", "commonest", path, "--split", "all")
    assert "It has: s" in refusal(2, "cohort", "commonest", path, "--site", "other")
