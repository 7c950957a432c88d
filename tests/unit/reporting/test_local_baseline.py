# SPDX-License-Identifier: Apache-2.0
"""Local baseline on the page: rows, differences and the sentence, by hand."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

from rich.console import Console

from medflare.cli.run import outcome, show
from medflare.core.run_record import ComparisonRecord, Estimate, LocalBaseline, RunRecord, read_record
from medflare.evaluation.label_metrics import condition_statistics
from medflare.reporting.galleries import findings
from medflare.reporting.page import render, write_page
from medflare.reporting.sections import local_baseline
from medflare.reporting.task_pages import task_page
from record_builders import evaluation


def record() -> RunRecord:
    """A run whose label F1 at north is 0.5, against 0.4 alone; south was tested without predictions here."""
    federated, alone = (
        {"label_f1": Estimate(value=value, low=value - 0.1, high=value + 0.1)} for value in (0.5, 0.4)
    )
    gap = ComparisonRecord(
        metric="label_f1",
        site="north",
        ours="federated",
        theirs="alone",
        value=0.1,
        low=-0.02,
        high=0.2,
        p=0.01,
    )
    return RunRecord(
        job="j",
        method="FedMRG",
        task="reports",
        run_id="r",
        started="2026-11-25",
        evaluations=[evaluation(site, "generic", 30, federated) for site in ("north", "south")],
        alone=[
            LocalBaseline(
                trained_at="north", evaluation=evaluation("north", "generic", 30, alone), differences=[gap]
            ),
            LocalBaseline(trained_at="south", evaluation=evaluation("south", "generic", 30, alone)),
        ],
    )


def test_the_sentence_gives_both_scores_the_difference_and_its_limit() -> None:
    assert local_baseline.summary(record()) == (
        "Federating changed label F1 at north (generic adapter) from 40.0 to 50.0, by +10.0 [-2.0, +20.0]. "
        "One run cannot tell training noise from an effect."
    )


def test_a_row_has_both_scores_and_no_star_even_where_p_is_small() -> None:
    view = local_baseline.view(record(), task_page("reports"))
    assert view is not None
    north, south = view["table"].rows
    assert [cell.text for cell in north[4:]] == ["50.0", "40.0", "+10.0"]
    assert [cell.small for cell in north[4:]] == ["[40.0, 60.0]", "[30.0, 50.0]", "[-2.0, +20.0]"]
    assert not any(cell.strong or cell.note for cell in north[4:])
    assert south[6].text == "–"
    assert "What federating brought" in render(record(), [])


def test_the_terminal_and_json_show_what_federating_brought(tmp_path: Path) -> None:
    """Of each site at itself: what it brought elsewhere is on the page."""
    away = LocalBaseline(trained_at="north", evaluation=record().alone[1].evaluation)
    run = record().model_copy(update={"alone": [*record().alone, away], "artefacts": {}})
    run.write(tmp_path / "run.json")
    console = Console(file=io.StringIO(), width=80)
    facts = outcome(tmp_path / "run.json", page=False)
    show(console, tmp_path / "run.json", facts)
    table = console.file.getvalue().split("what federating brought")[1]
    assert [line.split() for line in table.splitlines() if "label F1" in line] == [
        ["north", "generic", "label", "F1", "50.0", "40.0", "+10.0"],
        ["south", "generic", "label", "F1", "50.0", "40.0", "–"],
    ]
    assert "[-2.0, +20.0]" in table
    assert "cannot tell training noise" in " ".join(table.split())
    rows = facts["local_baseline"]
    assert [(row["trained_at"], row["tested_at"]) for row in rows] == [
        ("north", "north"),
        ("south", "south"),
        ("north", "south"),
    ]
    assert (rows[0]["federated"]["value"], rows[0]["alone"]["value"], rows[0]["difference"]["p"]) == (
        0.5,
        0.4,
        0.01,
    )
    assert rows[1]["difference"] is None
    json.dumps(facts)


def test_a_page_without_a_local_baseline_says_nothing_of_one() -> None:
    assert "What federating brought" not in render(record().model_copy(update={"alone": []}), [])


def test_a_condition_without_a_reference_has_no_f1() -> None:
    gold, predicted = [[0] * 14, [0] * 14], [[0] * 14, [0] * 14]
    gold[0][9] = predicted[1][8] = 1
    scores = condition_statistics(gold, predicted)
    assert {name: item.value for name, item in scores.items()} == {"label_f1/pleural effusion": 0}


def test_the_page_names_the_trained_weights(run_folder: Path, tmp_path: Path) -> None:
    run, final = read_record(run_folder), tmp_path / "adapter"
    final.mkdir()
    (final / "adapter_model.safetensors").write_bytes(b"weights")
    run.model_copy(update={"artefacts": {"final": "adapter"}, "evaluations": []}).write(tmp_path / "run.json")
    text = write_page(tmp_path).read_text(encoding="utf-8")
    digest = hashlib.sha256(b"adapter_model.safetensors" + b"weights").hexdigest()
    assert f"Trained weights {digest[:16]}." in text


def test_the_summary_does_not_name_radiologists(run_folder: Path) -> None:
    page = write_page(run_folder).read_text(encoding="utf-8")
    assert "findings in the references" in page
    assert "radiologists reported" not in page
    assert findings.sentence([]) == ""
