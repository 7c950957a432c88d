# SPDX-License-Identifier: Apache-2.0
"""Findings missed and invented, and left taken for right, on reports written for the purpose."""

from __future__ import annotations

import pytest

from medflare.evaluation.finding_errors import FindingRate, finding_errors, sides_of
from medflare.evaluation.predictions import Prediction
from medflare.labelling.labels import label_report


def study(reference: str, generated: str, number: int = 0) -> Prediction:
    return Prediction(
        study_id=f"s{number}",
        patient_id="p",
        site="site-1",
        adapter="generic",
        reference=reference,
        generated=generated,
        gold_codes=label_report(reference),
        predicted_codes=label_report(generated),
    )


STUDIES = [
    study("Left pleural effusion.", "Right pleural effusion.", 0),
    study("Left pleural effusion. Cardiomegaly.", "Left pleural effusion.", 1),
    study("No acute disease.", "There is a right pneumothorax.", 2),
    study("As before.", "No acute disease.", 3),
]


def test_missed_and_invented_findings_are_counted_by_condition() -> None:
    errors = finding_errors(STUDIES)
    assert (errors.missed, errors.invented) == (FindingRate(count=1, of=3), FindingRate(count=1, of=3))
    assert errors.by_condition["cardiomegaly"] == (FindingRate(count=1, of=1), FindingRate(count=0, of=0))
    assert errors.by_condition["pneumothorax"] == (FindingRate(count=0, of=0), FindingRate(count=1, of=1))
    assert "no finding" not in errors.by_condition
    assert errors.unrecognised == FindingRate(count=1, of=4)


def test_a_condition_that_does_not_occur_has_no_rate() -> None:
    missed, _ = finding_errors(STUDIES).by_condition["fracture"]
    assert (missed.value, missed.interval) == (None, None)


def test_left_for_right_is_counted_among_findings_with_one_side_in_both() -> None:
    assert finding_errors(STUDIES).swapped == FindingRate(count=1, of=2)


@pytest.mark.parametrize(
    ("report", "sides"),
    [
        ("Small left pleural effusion.", {"pleural effusion": "left"}),
        ("Bilateral pleural effusions, left greater than right.", {}),
        ("No left pleural effusion.", {}),
        ("Left pleural effusion. Right pleural effusion.", {}),
        ("Pleural effusion.", {}),
    ],
)
def test_the_side_of_a_finding_is_that_of_its_sentence(report: str, sides: dict[str, str]) -> None:
    assert sides_of(report) == sides


def test_wilsons_interval_is_the_textbooks() -> None:
    # Agresti and Coull (1998): 0 of 10 gives 0 to 0.278
    assert FindingRate(count=0, of=10).interval == pytest.approx((0, 0.2775), abs=1e-3)
