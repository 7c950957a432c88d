# SPDX-License-Identifier: Apache-2.0
"""The gallery of visits: patients in order of their visits, with the changes in words."""

from __future__ import annotations

from pathlib import Path

from page_reader import gallery_html, macro_html

from medflare.evaluation.predictions import Prediction
from medflare.evaluation.visit_metrics import evaluate_visits
from medflare.labelling.labels import label_report
from medflare.reporting.galleries.visits import change_chips, courses, pick
from medflare.reporting.score_rows import ScoreRow
from medflare.reporting.sections.visit_scores import by_visit

WORSE = "The pleural effusion has increased since the prior study."
STABLE = "The pleural effusion is unchanged."
THERE = "There is a small left pleural effusion."
FILE = Path("nowhere") / "predictions_generic.jsonl"


def report(patient: str, visit: int | None, reference: str, generated: str) -> Prediction:
    """A visit, 30 days after the one before."""
    later = visit is not None and visit > 1
    return Prediction(
        study_id=f"{patient}-v{visit}",
        patient_id=patient,
        site="site-1",
        adapter="generic",
        reference=reference,
        generated=generated,
        gold_codes=label_report(reference),
        predicted_codes=label_report(generated),
        visit=visit,
        days=30.0 if later else None,
        before_codes=label_report(THERE) if later else None,
    )


RIGHT = [report("right", 1, THERE, THERE), report("right", 2, WORSE, WORSE)]
WRONG = [report("wrong", 1, THERE, THERE), report("wrong", 3, WORSE, STABLE)]
ONCE = [report("once", 1, THERE, THERE)]


def test_visits_stand_in_their_order_with_the_days_between_them() -> None:
    text = gallery_html("visits", [(FILE, [*reversed(RIGHT)])], 2)
    first, second = (
        text.index("Visit 1. Study right-v1"),
        text.index("Visit 2, 30 days after the visit before"),
    )
    assert text.index("Patient right") < first < second
    assert "1 of 1 patients" in text


def test_what_changed_stands_beside_what_is_said_of_it() -> None:
    assert [chip.text for chip in change_chips(RIGHT[1])] == ["✓ pleural effusion worse"]
    assert [chip.text for chip in change_chips(WRONG[1])] == [
        "− missed: pleural effusion worse",
        "+ invented: pleural effusion unchanged",
    ]
    assert change_chips(RIGHT[0]) == []


def test_patients_rank_by_the_changes_told_and_those_who_came_once_are_left_out() -> None:
    patients = courses([(FILE, [*WRONG, *ONCE, *RIGHT])])["site-1"]
    assert pick(patients) == ["right", "wrong"]
    assert pick({"once": patients["once"]}) == ["once"]


def test_studies_without_visits_are_shown_as_before() -> None:
    text = gallery_html("reports", [(FILE, [report("lone", None, THERE, THERE)])], 2)
    assert "1 of 1 studies" in text
    assert "Visit" not in text
    assert gallery_html("visits", [(FILE, RIGHT)], 0) == ""


def test_a_page_has_a_line_for_each_score_and_a_column_for_each_visit() -> None:
    row = ScoreRow(
        task="visits",
        method="FedTAR",
        site="site-1",
        role="participant",
        adapter="generic",
        split="test",
        studies=4,
        metrics=evaluate_visits([*RIGHT, *WRONG], replicates=20),
    )
    text = macro_html("macros.html", "disclosure", by_visit([row], lambda row: row.site))
    head = '<th scope="col">visit 1</th><th scope="col">visit 2</th><th scope="col">visit 3</th>'
    assert head in text
    assert "mean over visits" in text
    assert "change F1" in text
    assert by_visit([], lambda row: row.site) is None
