# SPDX-License-Identifier: Apache-2.0
"""Studies become patients with ordered visits, gaps and the report before."""

from __future__ import annotations

import json
from pathlib import Path

import cohort_folders as folders
import pytest
from visit_folders import read, study_ids, visit_rows

from medflare.core.errors import ConfigError, DataError
from medflare.data.cohort_summary import summarise
from medflare.data.settings.site import load_site_file
from medflare.data.visits.longitudinal import group_patients, visits_per_number
from site_builders import read_cohort


def test_a_patient_has_numbered_visits_with_gaps_and_the_report_before(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path)
    a = patients["A"]
    assert [visit.number for visit in a.visits] == [1, 2, 3]
    assert [visit.gap for visit in a.visits] == [None, 30, 60]
    assert [visit.since for visit in a.visits] == [0, 30, 90]
    assert [visit.prior for visit in a.visits] == [None, folders.REPORTS[0], folders.REPORTS[1]]
    assert (a.age, a.sex, a.split) == (60, "M", "train")
    assert cohort.skipped == []


def test_rows_in_any_order_are_sorted_by_day_and_counted(tmp_path: Path) -> None:
    rows = visit_rows()
    cohort, patients = read(tmp_path, [rows[2], rows[0], rows[1], *rows[3:]])
    assert study_ids(patients["A"]) == ["s0", "s1", "s2"]
    assert cohort.visits.patients_sorted == 1
    assert cohort.skipped == []


def test_dates_instead_of_days(tmp_path: Path) -> None:
    rows = visit_rows()
    dates = ["2020-02-28", "2020-03-01T06:00", "20210228", "2019-01-01", "2019-01-02", "2024-05-31"]
    for row, date in zip(rows, dates, strict=True):
        row["when"] = date
        del row["day"], row["age"]
    folders.manifest(tmp_path, rows)
    cohort = read_cohort("manifest", tmp_path, columns={"date": "when"}, visits={}, max_skipped=0)
    assert [visit.since for visit in group_patients(cohort.studies)[0].visits] == [0, 2.25, 366]


def test_the_sources_own_numbers_leave_a_hole_where_a_visit_was_missed(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, visit_rows(numbers=(1, 2, 4, 1, 3, 2)), order="visit")
    assert [visit.number for visit in patients["A"].visits] == [1, 2, 4]
    assert patients["A"].visits[2].prior == folders.REPORTS[1]
    assert visits_per_number(list(patients.values())) == [2, 2, 1, 1]
    assert visits_per_number(list(patients.values()), "train") == [2, 1, 1, 1]
    assert summarise(cohort)["visits"]["missed"] == 3


def test_the_order_of_the_file_needs_no_days_and_knows_no_gaps(tmp_path: Path) -> None:
    _, patients = read(tmp_path, [{**row, "day": None} for row in visit_rows()], order="file")
    assert [(visit.number, visit.gap) for visit in patients["A"].visits] == [(1, None), (2, None), (3, None)]


def test_most_and_fewest_leave_out_without_fault(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, most=2, fewest=2)
    assert {who: len(patient.visits) for who, patient in patients.items()} == {"A": 2, "B": 2}
    assert cohort.visits.to_json() == {"visits_beyond": 1, "patients_with_too_few": 1}
    assert cohort.skipped == []


def test_one_day_can_be_one_visit_of_several_rows(tmp_path: Path) -> None:
    rows = visit_rows({1: {"day": 0.4}})
    cohort, patients = read(tmp_path, rows, same_day="merge")
    first = patients["A"].visits[0].study
    assert [path.name for path in first.images] == ["s0.png", "s1.png"]
    assert first.report == f"{folders.REPORTS[0]} {folders.REPORTS[1]}"
    assert cohort.visits.rows_merged == 1
    _, kept = read(tmp_path, rows, same_day="keep")
    assert [visit.since for visit in kept["A"].visits] == [0, 0.4, 90]


def test_a_missing_age_comes_from_the_patients_other_visits(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, visit_rows({4: {"age": None, "sex": None}}), needs=["age", "sex"])
    assert patients["B"].visits[1].study.age == pytest.approx(41, abs=0.01)
    assert patients["B"].visits[1].study.sex == "F"
    assert cohort.visits.to_json() == {"ages_filled": 1, "sexes_filled": 1}


def test_covariates_come_along(tmp_path: Path) -> None:
    rows = [{**row, "smoker": index % 2} for index, row in enumerate(visit_rows())]
    _, patients = read(tmp_path, rows, covariates=["smoker"])
    assert patients["A"].visits[1].study.extra["smoker"] == 1
    with pytest.raises(DataError, match=r"'visits.covariates' names smoker\. Columns found: study_id"):
        read(tmp_path / "without", covariates=["smoker"])


def test_visit_numbers_that_nobody_asked_for_are_ignored(tmp_path: Path) -> None:
    folders.manifest(tmp_path, [{**row, "visit": "V-17"} for row in visit_rows()])
    cohort = read_cohort("manifest", tmp_path)
    assert {study.visit for study in cohort.studies} == {None}
    assert summarise(cohort)["visits"] == {}
    assert cohort.skipped == []


def test_summary_tells_visits_gaps_and_people(tmp_path: Path) -> None:
    facts = summarise(read(tmp_path)[0])["visits"]
    assert facts["patients_with"] == {"1": 1, "2": 1, "3": 1}
    assert facts["per_visit"] == {"train": [2, 2, 1], "val": [0, 0, 0], "test": [1, 0, 0]}
    assert facts["gaps"] == {"count": 3, "unknown": 0, "min": 30, "median": 60, "max": 365}
    assert facts["age"] == {"count": 3, "unknown": 0, "min": 40, "median": 60, "max": 70}
    assert facts["sex"] == {"F": 2, "M": 1}
    assert json.loads(json.dumps(facts)) == facts


def test_site_yaml_has_a_key_and_refuses_what_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("cohort: {format: manifest, root: ., visits: {order: day, most: 5, gap: 3}}")
    with pytest.raises(ConfigError, match=r"visits\.gap: no such setting.*same_day"):
        load_site_file(path)
    path.write_text("cohort: {format: conll, root: ., visits: {}}")
    with pytest.raises(ConfigError, match="format conll does not read visits"):
        load_site_file(path)
    path.write_text("cohort: {format: manifest, root: ., visits: {most: 2, fewest: 3}}")
    with pytest.raises(ConfigError, match="no patient can have both"):
        load_site_file(path)
