# SPDX-License-Identifier: Apache-2.0
"""What is written about a run: the record, predictions, tables."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from medflare.core.errors import DataError
from medflare.core.json_lines import write_lines
from medflare.core.run_record import ComparisonRecord, Estimate, EvaluationRecord, read_record
from medflare.reporting.metric_names import curve_name, display_name
from medflare.reporting.score_rows import rows_of
from medflare.reporting.tables import results_table
from medflare.tasks.prediction_files import read_predictions


def test_a_record_survives_writing_and_reading(run_folder: Path, tmp_path: Path) -> None:
    record = read_record(run_folder)
    record.write(tmp_path / "copy" / "run.json")
    assert read_record(tmp_path / "copy") == record
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(("place", "name"), [((), "colour"), (("rounds", 0), "loss")])
def test_a_record_with_an_unknown_key_is_refused(
    run_folder: Path, tmp_path: Path, place: tuple, name: str
) -> None:
    data = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))
    inner = data
    for step in place:
        inner = inner[step]
    inner[name] = 1
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(DataError, match=name):
        read_record(path)


def written(folder: Path, **data: object) -> Path:
    """A record as JSON, without the keys that have defaults."""
    record = {"job": "j", "method": "m", "run_id": "r", "started": "now", **data}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def scored(*metrics: str) -> dict[str, Any]:
    """One evaluation with these scores."""
    scores = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in metrics}
    about = {"site": "a", "role": "unseen", "adapter": "generic", "split": "test", "studies": 1}
    return {"evaluations": [{**about, "metrics": scores}]}


VISIT = {"round": 0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("data", "task"),
    [
        ({}, "reports"),
        (scored("bleu_4", "label_f1"), "reports"),
        (scored("rouge_l", "length_ratio"), "summaries"),
        (scored("accuracy", "accuracy/dental"), "questions"),
        (scored("re_gold_strict_f1"), "extraction"),
        (scored("bleu_4", "visit_1/bleu_4"), "visits"),
        ({"rounds": [{**VISIT, "exchanges": [VISIT]}]}, "visits"),
        ({"rounds": [{**VISIT, "mean": {"val_ner_strict_f1": 0.5}}]}, "extraction"),
        ({"rounds": [{**VISIT, "mean": {"val_accuracy": 0.5}}], **scored("bleu_4")}, "reports"),
        ({"schema_version": 2, "task": "summaries", **scored("accuracy")}, "summaries"),
        ({"schema_version": 2, **scored("accuracy")}, ""),
    ],
)
def test_only_records_of_schema_1_have_their_task_inferred(
    tmp_path: Path, data: dict[str, object], task: str
) -> None:
    record = read_record(written(tmp_path, **({"schema_version": 1} | data)))
    assert (record.task, record.schema_version) == (task, 2)


@pytest.mark.parametrize("version", [0, 3, "2"])
def test_a_record_of_another_schema_is_refused(tmp_path: Path, version: object) -> None:
    with pytest.raises(DataError, match=f"schema 1 to 2: it has schema {version}"):
        read_record(written(tmp_path, schema_version=version))


def test_a_missing_record_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no run record"):
        read_record(tmp_path)


def test_predictions_survive_writing_and_reading(run_folder: Path, tmp_path: Path) -> None:
    items = read_predictions(run_folder / "predictions_site-1_generic.jsonl")
    assert len(items) == 24
    assert read_predictions(write_lines(tmp_path / "p.jsonl", items)) == items
    assert not Path(items[0].image or "/").is_absolute()


@pytest.mark.parametrize("damage", ['{"study_id": "a"}', "not json", None])
def test_a_damaged_predictions_file_names_its_line(
    run_folder: Path, tmp_path: Path, damage: str | None
) -> None:
    lines = (run_folder / "predictions_site-1_generic.jsonl").read_text(encoding="utf-8").splitlines()
    lines[1] = damage or lines[1].replace('"site":', '"Site":')
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=r"p\.jsonl:2"):
        read_predictions(path)


def evaluation(adapter: str, value: float) -> EvaluationRecord:
    return EvaluationRecord.model_validate(
        {
            "site": "site-1",
            "role": "participant",
            "adapter": adapter,
            "split": "test",
            "studies": 10,
            "metrics": {"bleu_4": Estimate(value=value, low=value - 0.1, high=value + 0.1)},
        }
    )


def printed(record: Any, metrics: Sequence[str] | None = None) -> str:
    """What the terminal shows of a run."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(results_table(rows_of([record]), metrics, record.comparisons))
    return console.export_text()


def test_a_table_marks_the_best_and_admits_what_is_not_significant(run_folder: Path) -> None:
    record = read_record(run_folder)
    record.evaluations = [evaluation("generic", 0.4), evaluation("personalised", 0.5)]
    record.comparisons = [
        ComparisonRecord(
            metric="bleu_4",
            site="site-1",
            ours="FedMRG generic",
            theirs="FedMRG personalised",
            value=-0.1,
            low=-0.25,
            high=0.05,
            p=0.2,
        )
    ]
    text = printed(record)
    assert re.search(r"site-1 +generic +10 +40\.0 *\n", text)
    assert re.search(r"site-1 +personalised +10 +50\.0 \(1\)", text)
    said = " ".join(text.split())
    assert "(1) BLEU-4 at site-1: FedMRG personalised is not significantly better than FedMRG generic" in said
    assert "+10.0 [-5.0, +25.0], p = 0.2" in said


def test_a_significant_difference_needs_no_note(run_folder: Path) -> None:
    record = read_record(run_folder)
    record.comparisons = [item.model_copy(update={"p": 1e-4}) for item in record.comparisons]
    assert "not significantly" not in " ".join(printed(record).split())


def test_a_difference_among_several_is_corrected_for_their_number(run_folder: Path) -> None:
    record = read_record(run_folder)
    record.evaluations = [evaluation("generic", 0.4), evaluation("personalised", 0.5)]
    facts = {"site": "site-1", "ours": "FedMRG personalised", "theirs": "FedMRG generic"}
    sizes = {"value": 0.1, "low": 0.01, "high": 0.2}
    record.comparisons = [
        ComparisonRecord(metric=metric, p=0.03, **facts, **sizes) for metric in ("bleu_4", "cider")
    ]
    for one in record.evaluations:
        one.metrics["cider"] = one.metrics["bleu_4"]
    assert "not significantly" not in printed(record, ["bleu_4"])
    assert "p = 0.06 after Holm for 2 comparisons" in " ".join(printed(record).split())


def test_the_terminal_table_shows_sites_intervals_and_unseen(run_folder: Path) -> None:
    record = read_record(run_folder)
    text = printed(record, ["bleu_4", "label_f1"])
    assert "site-4 (unseen)" in text
    assert text.count("[") >= 14


@pytest.mark.parametrize(("trained", "name"), [("adapter", "zero-shot"), ("model", "m")])
def test_a_row_without_adapter_is_zero_shot_where_one_was_trained(
    trained: str, name: str, tmp_path: Path
) -> None:
    scores = scored("bleu_4")
    folder = written(tmp_path, parameters={trained: 5}, **scores)
    (row,) = rows_of([read_record(folder)])
    assert (row.adapter_name, row.system) == ("generic", "m generic")
    scores["evaluations"][0]["adapter"] = "none"
    (row,) = rows_of([read_record(written(tmp_path, parameters={trained: 5}, **scores))])
    assert row.adapter_name == name


def test_rows_are_json(run_folder: Path) -> None:
    rows = [row.as_json() for row in rows_of([read_record(run_folder)])]
    assert json.loads(json.dumps(rows)) == rows
    assert {row["role"] for row in rows} == {"participant", "unseen"}
    assert rows[-1]["site"] == "site-4"


def test_names_are_the_papers() -> None:
    assert display_name("bleu_4") == "BLEU-4"
    assert curve_name("val_bleu_4") == "BLEU-4, validation"
    assert curve_name("train_loss_hcl") == "contrastive loss, training"
