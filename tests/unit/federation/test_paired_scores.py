# SPDX-License-Identifier: Apache-2.0
"""Personalised minus generic adapter in a run's record: of the same records, and of the newest tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from medflare.core.json_lines import write_lines
from medflare.core.run_record import Estimate, EvaluationRecord, RecordModel, RunRecord, read_record
from medflare.evaluation.extraction_predictions import EntityMention, ScoredDocument
from medflare.evaluation.predictions import Prediction
from medflare.recipes.after_run import compare_adapters


def reports(adapter: str, drafts: Sequence[str], first: int = 0) -> list[Prediction]:
    return [
        Prediction(
            study_id=str(first + number),
            patient_id=str(first + number),
            site="north",
            adapter=adapter,
            reference="small left effusion",
            generated=draft,
            gold_codes=(0,) * 14,
            predicted_codes=(0,) * 14,
        )
        for number, draft in enumerate(drafts)
    ]


def notes(adapter: str, found: int) -> list[ScoredDocument]:
    marks = [EntityMention(spans=((number, number + 1),), label="problem") for number in range(4)]
    return [
        ScoredDocument(
            note_id=str(number),
            site="north",
            adapter=adapter,
            gold_entities=marks,
            predicted_entities=marks[:found],
            tasks=("ner",),
        )
        for number in range(4)
    ]


def write_run(
    folder: Path, task: str, metric: str, sides: dict[str, Sequence[RecordModel]], split: str = "test"
) -> Path:
    record = RunRecord(job="j", method="m", task=task, run_id="r", started="2026")
    for adapter, items in sides.items():
        write_lines(folder / f"{adapter}.jsonl", items)
        record.evaluations.append(
            EvaluationRecord(
                site="north",
                role="participant",
                adapter=adapter,
                split=split,
                studies=len(items),
                metrics={metric: Estimate(value=0.5, low=0.4, high=0.6)},
                predictions=f"{adapter}.jsonl",
            )
        )
    record.write(folder / "run.json")
    return folder / "run.json"


def compared(path: Path) -> dict[str, float]:
    compare_adapters(path)
    return {item.metric: item.value for item in read_record(path).comparisons}


def test_reports_of_the_same_studies_are_paired(tmp_path: Path) -> None:
    right, wrong = ["small left effusion"] * 4, ["no effusion"] * 4
    sides = {"generic": reports("generic", wrong), "personalised": reports("personalised", right)}
    assert compared(write_run(tmp_path, "reports", "bleu_1", sides))["bleu_1"] > 0.3


@pytest.mark.parametrize("ours", [range(1, 5), range(3)], ids=["other-studies", "fewer"])
def test_reports_of_other_studies_are_not_paired(tmp_path: Path, ours: range) -> None:
    """One adapter was tested again after studies had been added: as many may be others."""
    drafts = ["small left effusion"] * len(ours)
    sides = {
        "generic": reports("generic", ["no effusion"] * 4),
        "personalised": reports("personalised", drafts, first=ours.start),
    }
    assert compared(write_run(tmp_path, "reports", "bleu_1", sides)) == {}


def test_notes_are_paired_too(tmp_path: Path) -> None:
    sides = {"generic": notes("generic", 2), "personalised": notes("personalised", 4)}
    path = write_run(tmp_path, "extraction", "ner_strict_f1", sides)
    assert compared(path) == {"ner_strict_f1": pytest.approx(1 - 2 / 3)}


def test_what_cannot_be_paired_is_left_out(tmp_path: Path) -> None:
    sides = {"generic": notes("generic", 2), "personalised": notes("personalised", 4)[1:]}
    assert compared(write_run(tmp_path, "extraction", "ner_strict_f1", sides)) == {}
    (tmp_path / "generic.jsonl").unlink()
    assert compared(tmp_path / "run.json") == {}
    (tmp_path / "questions").mkdir()
    sides = {"generic": reports("generic", ["B"]), "personalised": reports("personalised", ["A"])}
    assert compared(write_run(tmp_path / "questions", "questions", "accuracy", sides)) == {}
