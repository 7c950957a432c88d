# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a visit is named by the row it stands in, and the other visits go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cohort_folders as folders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from visit_folders import NUMBERS, Changes, read, site, study_ids, visit_rows

from medflare.core.errors import DataError
from medflare.data.visit_samples import open_visits
from medflare.data.visits.longitudinal import group_patients
from site_builders import read_cohort

# what is changed in which row, the reason it is counted under, the line and patient named, the visits A keeps
FAULTS: dict[str, tuple[Changes, str, str, str, int]] = {
    "unreadable day": ({1: {"day": "next May"}}, "unreadable date", "2 A", "the day or date 'next May'", 2),
    "date as day": ({1: {"day": 20240531}}, "unreadable date", "2 A", "the day or date '20240531'", 2),
    "no day": ({1: {"day": None}}, "no date", "2 A", "no day or date", 2),
    "two on one day": ({2: {"day": 30}}, "two visits on one day", "3 A", "day 30 has a visit already", 2),
    "against its number": (
        {0: {"visit": 1}, 1: {"visit": 3}, 2: {"visit": 2}},
        "dates out of order", "3 A", "visit 2 on day 90", 2,
    ),
    "age of 340": ({1: {"age": 340}}, "impossible age", "2 A", "age 340 is no age", 3),
    "age below zero": ({1: {"age": -4}}, "impossible age", "2 A", "age -4 is no age", 3),
    "age of letters": ({1: {"age": "sixty"}}, "impossible age", "2 A", "age 'sixty' is no age", 3),
    "age of another": ({1: {"age": 30}}, "contradictory age", "2 A", "age 30 does not fit age 60", 3),
    "other sex": ({1: {"sex": "F"}}, "contradictory sex", "2 A", "sex is 'F'", 3),
    "no report": ({5: {"report": ""}}, "patient without visits", "6 C", "none of 1 row(s)", 3),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason", "place", "words", "visits"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_the_row_and_the_rest_goes_on_unless_the_limit_is_passed(
    changes: Changes, reason: str, place: str, words: str, visits: int, tmp_path: Path
) -> None:
    number, patient = place.split()
    line = f"manifest.jsonl:{number}: patient '{patient}': {words}"
    cohort, patients = read(tmp_path, visit_rows(changes))
    (skipped,) = [item for item in cohort.skipped if item.reason == reason]
    assert skipped.detail.startswith(line)
    assert [visit.number for visit in patients["A"].visits] == list(range(1, visits + 1))
    ages = {study.age for study in cohort.studies if study.patient_id == "A"}
    assert ages <= {60, 60 + 30 / 365.25}
    assert len({item.record for item in cohort.skipped}) == 1
    with pytest.raises(DataError) as caught:
        read_cohort("manifest", tmp_path, visits={}, max_skipped=0.05)
    assert "1 of 6 records cannot be used, allowed are 5.0%" in str(caught.value)
    assert line in str(caught.value)


def test_faults_of_any_cohort_name_the_row_too(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, visit_rows({1: {"image": ["images/absent.png"]}}))
    assert cohort.skipped[0].detail.startswith("manifest.jsonl:2: ")
    assert [visit.gap for visit in patients["A"].visits] == [None, 90]


def test_a_patient_without_any_day_keeps_the_first_row(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, visit_rows({row: {"day": ""} for row in range(3)}))
    assert study_ids(patients["A"]) == ["s0"]
    assert [item.record for item in cohort.skipped] == ["s1", "s2"]


def test_a_patient_without_age_is_refused_only_where_the_site_needs_it(tmp_path: Path) -> None:
    rows = visit_rows({5: {"age": None}})
    assert read(tmp_path, rows)[1]["C"].age is None
    cohort, patients = read(tmp_path, rows, needs=["age"])
    assert sorted(patients) == ["A", "B"]
    assert cohort.skipped[0].detail.startswith("manifest.jsonl:6: patient 'C': no visit tells the age")


@pytest.mark.parametrize("number", [None, 0, -1, 1.5, "second"])
def test_a_row_without_a_visit_number_is_named(number: Any, tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, visit_rows({1: {"visit": number}}, NUMBERS), order="visit")
    assert [(item.reason, item.record) for item in cohort.skipped] == [("no visit number", "s1")]
    assert [visit.number for visit in patients["A"].visits] == [1, 3]


def test_a_number_used_twice_is_named(tmp_path: Path) -> None:
    rows = visit_rows({2: {"visit": 2}}, NUMBERS)
    cohort, _ = read(tmp_path, rows, order="visit", same_day="keep")
    assert [(item.reason, item.record) for item in cohort.skipped] == [("two visits of one number", "s2")]


@pytest.mark.parametrize("order", ["visit", "file"])
def test_days_against_the_order_are_named(order: str, tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, visit_rows({2: {"day": 10}}, NUMBERS), order=order)
    assert [item.reason for item in cohort.skipped] == ["dates out of order"]
    line = "manifest.jsonl:3: patient 'A': visit 3 on day 10 is out of order with visit 2 on day 30"
    assert cohort.skipped[0].detail.startswith(line)
    assert [visit.since for visit in patients["A"].visits] == [0, 30]


def test_an_unreadable_day_costs_the_gap_where_the_source_numbers_visits(tmp_path: Path) -> None:
    rows = visit_rows({1: {"day": "??"}}, NUMBERS)
    cohort, patients = read(tmp_path, rows, order="visit")
    assert [visit.gap for visit in patients["A"].visits] == [None, None, None]
    assert [visit.since for visit in patients["A"].visits] == [0, None, 90]
    assert cohort.skipped[0].detail.startswith("manifest.jsonl:2: patient 'A': the day or date '??'")
    samples = open_visits(site(tmp_path, rows, order="visit"), 16)
    assert samples.gaps([0, 1, 2]).isnan().tolist() == [False, True, True]
    assert samples.days("train") == [[0, 365]]


def test_the_lines_of_a_csv_are_named_too(tmp_path: Path) -> None:
    rows = visit_rows({1: {"age": 340}})
    folders.manifest(tmp_path)
    (tmp_path / "manifest.jsonl").unlink()
    folders.write_csv(tmp_path / "manifest.csv", [{**row, "image": row["image"][0]} for row in rows])
    cohort = read_cohort("manifest", tmp_path, visits={}, max_skipped=1)
    assert cohort.skipped[0].detail.startswith("manifest.csv:3: patient 'A': age 340 is no age")


def test_nothing_left_says_that_patients_have_too_few_visits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"3 patient\(s\) have fewer visits than 'visits: fewest' asks for"):
        read(tmp_path, fewest=4)


NUMBERS_AND_TEXTS = [
    -5,
    0,
    1,
    2,
    2.5,
    1e9,
    float("nan"),
    float("inf"),
    "",
    "x",
    "F",
    "2020-13-01",
    "A",
    "71Y",
]
JUNK = st.sampled_from([*NUMBERS_AND_TEXTS, None, True, [], {}])
COLUMNS = st.sampled_from(["day", "age", "sex", "visit", "patient_id", "when"])


@settings(max_examples=40, deadline=None)
@given(
    junk=st.lists(st.tuples(st.integers(0, 5), COLUMNS, JUNK), max_size=12),
    order=st.sampled_from(["day", "visit", "file"]),
    same_day=st.sampled_from(["skip", "merge", "keep"]),
    dated=st.booleans(),
)
def test_no_table_makes_it_crash(
    tmp_path_factory: pytest.TempPathFactory, junk: Any, order: str, same_day: str, dated: bool
) -> None:
    rows = [{**row, "when": "2020-01-02"} for row in visit_rows(numbers=(1, 2, 3, 4, 5, 6))]
    for index, column, value in junk:
        rows[index][column] = value
    root = tmp_path_factory.getbasetemp() / "junk"
    folders.manifest(root, rows)
    columns, visits = {"date": "when"} if dated else {}, {"order": order, "same_day": same_day}
    try:
        cohort = read_cohort("manifest", root, max_skipped=1.0, columns=columns, visits=visits)
    except DataError:  # nothing usable is left
        return
    for patient in group_patients(cohort.studies):
        numbers = [visit.number for visit in patient.visits]
        assert numbers == sorted(set(numbers))
        assert all(visit.gap is None or visit.gap >= 0 for visit in patient.visits)
        assert patient.age is None or 0 <= patient.age <= 120
        assert len({visit.study.sex for visit in patient.visits}) == 1
