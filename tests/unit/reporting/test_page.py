# SPDX-License-Identifier: Apache-2.0
"""The page: complete in itself, readable without colour, honest about gaps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from page_reader import Reader, read

from medflare.core.errors import ConfigError
from medflare.core.run_record import Estimate, RunRecord, read_record
from medflare.evaluation.agreement import finding_agreement
from medflare.models.backbone import EMBEDDED_NAMES
from medflare.reporting.charts.drawing import ticks
from medflare.reporting.charts.lines import line_chart
from medflare.reporting.formatting import byte_size, number
from medflare.reporting.galleries.studies import finding_chips, pick
from medflare.reporting.page import write_page
from medflare.reporting.sections import header, participation, results
from medflare.reporting.task_pages import TASK_PAGES, task_page
from medflare.tasks import TASKS
from medflare.tasks.prediction_files import read_predictions


@pytest.fixture(scope="module")
def page(run_folder: Path) -> Reader:
    return read(write_page(run_folder))


def test_the_page_loads_nothing(page: Reader, run_folder: Path) -> None:
    for tag, attributes in page.found:
        assert tag not in {"script", "link", "iframe", "object", "embed", "base"}
        for name in ("src", "srcset", "href", "xlink:href", "data", "action"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?:https?:|//|file:|/)", value), (tag, value)
            assert name == "href" or value.startswith("data:") or not value
    text = (run_folder / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|https?://", text)


def test_pictures_charts_and_tables_speak(page: Reader) -> None:
    images = [a for tag, a in page.found if tag == "img"]
    charts = [a for tag, a in page.found if tag == "svg"]
    assert len(images) >= 12
    assert all(a.get("alt") for a in images)
    assert len(charts) >= 8
    assert all(a.get("aria-label") and a.get("role") == "img" for a in charts)
    assert all(a.get("scope") in ("row", "col") for tag, a in page.found if tag == "th")
    assert [tag for tag, _ in page.found].count("h1") == 1


@pytest.mark.parametrize(
    "fact",
    [
        "completed",
        "2026-11-20-a",
        "sha256:9f2c",
        "All sites hold the same frozen weights.",
        "no update within 600 s (round 3)",
        "site-4 (unseen)",
        "is not significantly better than",
        "skipped: METEOR needs Java",
        "negative values are normal",
        "42,500,160",
        "Prevalence of findings",
        "Handle it like the studies themselves",
        "nvflare",
        "gamma_mix",
    ],
)
def test_the_page_tells(page: Reader, fact: str) -> None:
    assert fact in page.text


def test_a_folder_is_no_name_of_a_page(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; name the file of the page"):
        write_page(run_folder, tmp_path)


def test_a_device_is_not_replaced_by_a_page(run_folder: Path, tmp_path: Path) -> None:
    """As root it would be: /dev/null was a file of all programs' output then."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is no file; name one for the page"):
        write_page(run_folder, pipe)
    assert pipe.is_fifo()


def test_without_gallery_nothing_of_a_patient_is_in_the_page(run_folder: Path, tmp_path: Path) -> None:
    reader = read(write_page(run_folder, tmp_path / "share.html", gallery=0))
    assert "img" not in {tag for tag, _ in reader.found}
    for item in read_predictions(run_folder / "predictions_site-1_generic.jsonl"):
        assert item.study_id not in reader.text
        assert item.reference not in reader.text


def test_a_missing_image_is_said_not_hidden(run_folder: Path, tmp_path: Path) -> None:
    reader = read(write_page(run_folder, tmp_path / "all.html", gallery=24))
    assert "image not shown: missing image" in reader.text


def test_text_from_reports_is_escaped(make_run: Callable[..., Path]) -> None:
    folder = make_run(rounds=2)
    for path in folder.glob("predictions_*.jsonl"):
        path.write_text(path.read_text(encoding="utf-8").replace("The heart", "<b>&heart"), encoding="utf-8")
    text = write_page(folder).read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;heart" in text


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    RunRecord(job="fedmrg", method="", run_id="r", started="now").write(tmp_path / "run.json")
    reader = read(write_page(tmp_path))
    assert "still running" in reader.text
    assert "No final evaluation" in reader.text


@pytest.mark.parametrize("status", get_args(RunRecord.model_fields["status"].annotation))
def test_a_run_of_every_status_has_a_page(tmp_path: Path, status: Any) -> None:
    record = RunRecord(job="fedmrg", method="", run_id="r", started="now", status=status, reason="because")
    record.write(tmp_path / "run.json")
    words = "still running" if status == "running" else status
    text = read(write_page(tmp_path)).text
    assert words in text
    assert f"{words.capitalize()}: because" in text


def test_a_demo_model_and_a_test_of_few_are_named_at_the_top(run_folder: Path) -> None:
    record = read_record(run_folder)
    assert not [text for text in header.view(record, "")["notices"] if "Demo model" in text]
    for name in EMBEDDED_NAMES.values():
        record.sites["site-1"].backbone = name
        assert any(text.startswith("Demo model") for text in header.view(record, "")["notices"])
    record.evaluations = [item.model_copy(update={"studies": 19}) for item in record.evaluations[:1]]
    (few,) = [text for text in header.view(record, "")["notices"] if "concluded" in text]
    assert few == "Tests of fewer than 20 records (site-1 19): nothing can be concluded from their scores."
    record.evaluations = [item.model_copy(update={"studies": 20}) for item in record.evaluations]
    assert not [text for text in header.view(record, "")["notices"] if "concluded" in text]


def test_a_thousand_rounds_stay_small(make_run: Callable[..., Path]) -> None:
    path = write_page(make_run(rounds=1000), gallery=0)
    assert path.stat().st_size < 1_500_000


def test_a_line_breaks_where_a_site_was_absent(run_folder: Path) -> None:
    points = [(1.0, 0.1), (2.0, 0.2), (4.0, -0.4)]
    chart = line_chart({"site-1": points}, {"site-1": "s0"}, "loss")
    assert chart is not None
    assert [type(item).__name__ for item in chart.shapes].count("Curve") == 2
    assert "site-2" not in read_record(run_folder).rounds[2].metrics


def test_an_update_that_came_late_is_named_with_its_round(run_folder: Path) -> None:
    record = read_record(run_folder)
    entry = record.rounds[3]
    entry.accepted["site-1"], entry.late = 7, {"site-1": 1}
    rows = {row[0]: row for row in participation.view(record)["table"].rows}
    assert "update of an earlier round counted (round 4)" in rows["site-1"][1]
    assert rows["site-1"][3] == "700", "its full weight, not that of the late update"


def test_chips_say_agree_missed_and_invented(run_folder: Path) -> None:
    item = read_predictions(run_folder / "predictions_site-1_generic.jsonl")[0]
    gold, predicted = [0] * 14, [0] * 14
    gold[1] = predicted[1] = gold[9] = predicted[8] = 1
    chips = finding_chips(
        item.model_copy(update={"gold_codes": tuple(gold), "predicted_codes": tuple(predicted)})
    )
    assert [(chip.style, chip.text) for chip in chips] == [
        ("agree", "✓ cardiomegaly"),
        ("missed", "− missed: pleural effusion"),
        ("invented", "+ invented: pneumothorax"),
    ]


def test_a_report_in_which_nothing_is_recognised_is_grey(run_folder: Path) -> None:
    item = read_predictions(run_folder / "predictions_site-1_generic.jsonl")[0]
    codes = {"gold_codes": (0,) * 14, "predicted_codes": (0,) * 13 + (1,)}
    assert [(chip.style, chip.text) for chip in finding_chips(item.model_copy(update=codes))] == [
        ("invented", "+ wrongly called normal"),
        ("none", "nothing recognised in the reference report"),
    ]


def test_the_gallery_shows_good_and_bad_studies(run_folder: Path) -> None:
    items = read_predictions(run_folder / "predictions_site-3_generic.jsonl")
    shown = [finding_agreement(item) for item in pick(items, 4)]
    everything = sorted(finding_agreement(item) for item in items)
    assert shown == sorted(shown, reverse=True)
    assert shown[-1] <= everything[len(everything) // 3]
    assert shown[0] >= everything[-3]


def test_axes_are_round_numbers() -> None:
    assert ticks(0.03, 0.81) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-7.1, 1.2)[0] == -7.5
    assert ticks(2, 2)[0] <= 2 <= ticks(2, 2)[-1]
    assert (byte_size(1_113_088), byte_size(0), number(-0.25)) == ("1.11 MB", "0 B", "−0.25")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_page_of_its_own(name: str) -> None:
    page = task_page(name)
    assert page.task is TASKS[name]
    assert set(TASK_PAGES) == set(TASKS)
    assert page.columns[0] in TASKS[name].headline


def test_a_run_that_names_no_task_yet_has_the_page_of_reports() -> None:
    assert task_page("").task.name == "reports"


def main_table(run_folder: Path, task: str, **scores: float) -> list[str]:
    """Return the head of the main table of a run of a task whose sites all have these scores."""
    record = read_record(run_folder)
    metrics = {name: Estimate(value=value, low=value, high=value) for name, value in scores.items()}
    for evaluation in record.evaluations:
        evaluation.metrics = metrics
    record.task = task
    return list(results.view(record, task_page(task))["table"].head)


def test_the_table_of_summaries_has_a_column_for_bleu_4(run_folder: Path) -> None:
    assert "BLEU-4" in main_table(run_folder, "summaries", bleu_4=0.2, rouge_l=0.4)


@pytest.mark.parametrize("task", ["reports", "visits", "summaries"])
def test_reports_that_were_not_understood_have_a_column_only_where_there_are_any(
    run_folder: Path, task: str
) -> None:
    head = main_table(run_folder, task, bleu_4=0.2, label_unrecognised=0.0, label_unrecognised_generated=0.1)
    assert head[-1] == "outputs not understood"
    assert "references not understood" not in head
