# SPDX-License-Identifier: Apache-2.0
"""Studies become patients with ordered visits; what is wrong is named by the row it stands in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cohort_folders as folders
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.core.errors import ConfigError, DataError
from medflare.data.cohort import Cohort
from medflare.data.cohort_summary import summarise
from medflare.data.load import load_cohort
from medflare.data.records import Patient
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig, load_site_file
from medflare.data.settings.visits import VisitConfig
from medflare.data.visit_samples import open_visits
from medflare.data.visits.longitudinal import group_patients, visits_per_number

Rows = list[dict[str, Any]]


def visit_rows() -> Rows:
    """Patient A with three visits (days 0, 30, 90), B with two (0, 365), C with one; lines 1 to 6."""
    plan = [("A", 0, 60, "M"), ("A", 30, 60, "M"), ("A", 90, 60, "M"), ("B", 0, 40, "F"), ("B", 365, 41, "F")]
    plan.append(("C", 0, 70, "F"))
    return [
        {
            "study_id": f"s{index}",
            "patient_id": who,
            "image": [f"images/s{index}.png"],
            "report": folders.REPORTS[index],
            "split": "test" if who == "C" else "train",
            "age": age,
            "sex": sex,
            "day": day,
        }
        for index, (who, day, age, sex) in enumerate(plan)
    ]


def site(root: Path, rows: Rows | None = None, *, max_skipped: float = 1.0, **visits: Any) -> SiteConfig:
    folders.manifest(root, visit_rows() if rows is None else rows)
    config = CohortConfig(format="manifest", root=root, max_skipped=max_skipped, visits=VisitConfig(**visits))
    return SiteConfig(name="site-1", cohort=config)


def read(root: Path, rows: Rows | None = None, **settings: Any) -> tuple[Cohort, dict[str, Patient]]:
    cohort = load_cohort(site(root, rows, **settings))
    return cohort, {patient.patient_id: patient for patient in group_patients(cohort.studies)}


def ids(patient: Patient) -> list[str]:
    return [visit.study.study_id for visit in patient.visits]


# ---- what a site's files become ----------------------------------------------------------------------------


def test_a_patient_has_numbered_visits_with_gaps_and_the_report_before(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path)
    a = patients["A"]
    assert [visit.number for visit in a.visits] == [1, 2, 3]
    assert [visit.gap for visit in a.visits] == [None, 30, 60]
    assert [visit.since for visit in a.visits] == [0, 30, 90]
    assert [visit.prior for visit in a.visits] == ["", folders.REPORTS[0], folders.REPORTS[1]]
    assert (a.age, a.sex, a.split) == (60, "M", "train")
    assert cohort.skipped == []


def test_rows_in_any_order_are_sorted_by_day_and_counted(tmp_path: Path) -> None:
    rows = visit_rows()
    cohort, patients = read(tmp_path, [rows[2], rows[0], rows[1], *rows[3:]])
    assert ids(patients["A"]) == ["s0", "s1", "s2"]
    assert cohort.visits.patients_sorted == 1
    assert cohort.skipped == []


def test_dates_instead_of_days(tmp_path: Path) -> None:
    rows = visit_rows()
    dates = ["2020-02-28", "2020-03-01T06:00", "20210228", "2019-01-01", "2019-01-02", "2024-05-31"]
    for row, date in zip(rows, dates, strict=True):
        row["when"] = date
        del row["day"], row["age"]
    folders.manifest(tmp_path, rows)
    config = CohortConfig(
        format="manifest", root=tmp_path, columns={"date": "when"}, visits=VisitConfig(), max_skipped=0
    )
    found = group_patients(load_cohort(SiteConfig(cohort=config)).studies)
    assert [visit.since for visit in found[0].visits] == [0, 2.25, 366]


def test_the_sources_own_numbers_leave_a_hole_where_a_visit_was_missed(tmp_path: Path) -> None:
    rows = visit_rows()
    for row, number in zip(rows, (1, 2, 4, 1, 3, 2), strict=True):
        row["visit"] = number
    cohort, patients = read(tmp_path, rows, order="visit")
    assert [visit.number for visit in patients["A"].visits] == [1, 2, 4]
    assert patients["A"].visits[2].prior == folders.REPORTS[1]
    assert visits_per_number(list(patients.values())) == [2, 2, 1, 1]
    assert visits_per_number(list(patients.values()), "train") == [2, 1, 1, 1]
    assert summarise(cohort)["visits"]["missed"] == 3


def test_the_order_of_the_file_needs_no_days_and_knows_no_gaps(tmp_path: Path) -> None:
    rows = [{**row, "day": None} for row in visit_rows()]
    _, patients = read(tmp_path, rows, order="file")
    assert [(visit.number, visit.gap) for visit in patients["A"].visits] == [(1, None), (2, None), (3, None)]


def test_most_and_fewest_leave_out_without_fault(tmp_path: Path) -> None:
    cohort, patients = read(tmp_path, most=2, fewest=2)
    assert {who: len(patient.visits) for who, patient in patients.items()} == {"A": 2, "B": 2}
    assert cohort.visits.to_json() == {"visits_beyond": 1, "patients_with_too_few": 1}
    assert cohort.skipped == []


def test_one_day_can_be_one_visit_of_several_rows(tmp_path: Path) -> None:
    rows = visit_rows()
    rows[1]["day"] = 0.4
    cohort, patients = read(tmp_path, rows, same_day="merge")
    first = patients["A"].visits[0].study
    assert [path.name for path in first.images] == ["s0.png", "s1.png"]
    assert first.report == f"{folders.REPORTS[0]} {folders.REPORTS[1]}"
    assert cohort.visits.rows_merged == 1
    _, kept = read(tmp_path, rows, same_day="keep")
    assert [visit.since for visit in kept["A"].visits] == [0, 0.4, 90]


def test_a_missing_age_comes_from_the_patients_other_visits(tmp_path: Path) -> None:
    rows = visit_rows()
    rows[4]["age"] = rows[4]["sex"] = None
    cohort, patients = read(tmp_path, rows, needs=["age", "sex"])
    assert patients["B"].visits[1].study.age == pytest.approx(41, abs=0.01)
    assert patients["B"].visits[1].study.sex == "F"
    assert cohort.visits.to_json() == {"ages_filled": 1, "sexes_filled": 1}


def test_covariates_come_along(tmp_path: Path) -> None:
    rows = [{**row, "smoker": index % 2} for index, row in enumerate(visit_rows())]
    _, patients = read(tmp_path, rows, covariates=["smoker"])
    assert patients["A"].visits[1].study.extra["smoker"] == 1
    with pytest.raises(DataError, match=r"'visits.covariates' names smoker\. Columns found: study_id"):
        read(tmp_path / "without", covariates=["smoker"])


# ---- faults ------------------------------------------------------------------------------------------------


def unreadable_day(rows: Rows) -> None:
    rows[1]["day"] = "next May"


def date_as_day(rows: Rows) -> None:
    rows[1]["day"] = 20240531


def no_day(rows: Rows) -> None:
    rows[1]["day"] = None


def two_on_one_day(rows: Rows) -> None:
    rows[2]["day"] = 30


def against_its_number(rows: Rows) -> None:
    rows[0]["visit"], rows[1]["visit"], rows[2]["visit"] = 1, 3, 2


def age_of_340(rows: Rows) -> None:
    rows[1]["age"] = 340


def age_below_zero(rows: Rows) -> None:
    rows[1]["age"] = -4


def age_of_letters(rows: Rows) -> None:
    rows[1]["age"] = "sixty"


def age_of_another(rows: Rows) -> None:
    rows[1]["age"] = 30


def other_sex(rows: Rows) -> None:
    rows[1]["sex"] = "F"


def no_report(rows: Rows) -> None:
    rows[5]["report"] = ""


# what is broken, the reason it is counted under, the line that is named, the visits that patient A keeps
FAULTS: list[tuple[Callable[[Rows], None], str, str, int]] = [
    (unreadable_day, "unreadable date", "manifest.jsonl:2: patient 'A': the day or date 'next May'", 2),
    (date_as_day, "unreadable date", "manifest.jsonl:2: patient 'A': the day or date '20240531'", 2),
    (no_day, "no date", "manifest.jsonl:2: patient 'A': no day or date", 2),
    (two_on_one_day, "two visits on one day", "manifest.jsonl:3: patient 'A': day 30 has a visit already", 2),
    (against_its_number, "dates out of order", "manifest.jsonl:3: patient 'A': visit 2 on day 90", 2),
    (age_of_340, "impossible age", "manifest.jsonl:2: patient 'A': age 340 is no age", 3),
    (age_below_zero, "impossible age", "manifest.jsonl:2: patient 'A': age -4 is no age", 3),
    (age_of_letters, "impossible age", "manifest.jsonl:2: patient 'A': age 'sixty' is no age", 3),
    (age_of_another, "contradictory age", "manifest.jsonl:2: patient 'A': age 30 does not fit age 60", 3),
    (other_sex, "contradictory sex", "manifest.jsonl:2: patient 'A': sex is 'F'", 3),
    (no_report, "patient without visits", "manifest.jsonl:6: patient 'C': none of 1 row(s)", 3),
]
NAMES = [fault.__name__ for fault, *_ in FAULTS]


@pytest.mark.parametrize(("fault", "reason", "line", "visits"), FAULTS, ids=NAMES)
def test_fault_names_the_row_and_the_rest_goes_on(
    fault: Any, reason: str, line: str, visits: int, tmp_path: Path
) -> None:
    rows = visit_rows()
    fault(rows)
    cohort, patients = read(tmp_path, rows)
    told = [item for item in cohort.skipped if item.reason == reason]
    assert len(told) == 1
    assert told[0].detail.startswith(line)
    assert [visit.number for visit in patients["A"].visits] == list(range(1, visits + 1))
    assert {study.age for study in cohort.studies if study.patient_id == "A"} <= {60, *AGED}
    assert len({item.record for item in cohort.skipped}) == 1


AGED = {60 + 30 / 365.25}


@pytest.mark.parametrize(("fault", "reason", "line", "visits"), FAULTS, ids=NAMES)
def test_fault_over_the_limit_is_one_error_before_anything_is_trained(
    fault: Any, reason: str, line: str, visits: int, tmp_path: Path
) -> None:
    rows = visit_rows()
    fault(rows)
    with pytest.raises(DataError) as caught:
        read(tmp_path, rows, max_skipped=0.05)
    assert "1 of 6 records cannot be used, allowed are 5.0%" in str(caught.value)
    assert line in str(caught.value)


def test_faults_of_any_cohort_name_the_row_too(tmp_path: Path) -> None:
    rows = visit_rows()
    rows[1]["image"] = ["images/absent.png"]
    cohort, patients = read(tmp_path, rows)
    assert cohort.skipped[0].detail.startswith("manifest.jsonl:2: ")
    assert [visit.gap for visit in patients["A"].visits] == [None, 90]


def test_a_patient_without_any_day_keeps_the_first_row(tmp_path: Path) -> None:
    rows = visit_rows()
    for row in rows[:3]:
        row["day"] = ""
    cohort, patients = read(tmp_path, rows)
    assert ids(patients["A"]) == ["s0"]
    assert [item.record for item in cohort.skipped] == ["s1", "s2"]


def test_a_patient_without_age_is_refused_only_where_the_site_needs_it(tmp_path: Path) -> None:
    rows = visit_rows()
    rows[5]["age"] = None
    assert read(tmp_path, rows)[1]["C"].age is None
    cohort, patients = read(tmp_path, rows, needs=["age"])
    assert sorted(patients) == ["A", "B"]
    assert cohort.skipped[0].detail.startswith("manifest.jsonl:6: patient 'C': no visit tells the age")


@pytest.mark.parametrize("number", [None, 0, -1, 1.5, "second"])
def test_a_row_without_a_visit_number_is_named(number: Any, tmp_path: Path) -> None:
    rows = [{**row, "visit": place} for row, place in zip(visit_rows(), (1, 2, 3, 1, 2, 1), strict=True)]
    rows[1]["visit"] = number
    cohort, patients = read(tmp_path, rows, order="visit")
    assert [(item.reason, item.record) for item in cohort.skipped] == [("no visit number", "s1")]
    assert [visit.number for visit in patients["A"].visits] == [1, 3]


def test_a_number_used_twice_is_named(tmp_path: Path) -> None:
    rows = [{**row, "visit": place} for row, place in zip(visit_rows(), (1, 2, 2, 1, 2, 1), strict=True)]
    cohort, _ = read(tmp_path, rows, order="visit", same_day="keep")
    assert [(item.reason, item.record) for item in cohort.skipped] == [("two visits of one number", "s2")]


@pytest.mark.parametrize("order", ["visit", "file"])
def test_days_against_the_order_are_named(order: str, tmp_path: Path) -> None:
    rows = [{**row, "visit": place} for row, place in zip(visit_rows(), (1, 2, 3, 1, 2, 1), strict=True)]
    rows[2]["day"] = 10
    cohort, patients = read(tmp_path, rows, order=order)
    assert [item.reason for item in cohort.skipped] == ["dates out of order"]
    line = "manifest.jsonl:3: patient 'A': visit 3 on day 10 is out of order with visit 2 on day 30"
    assert cohort.skipped[0].detail.startswith(line)
    assert [visit.since for visit in patients["A"].visits] == [0, 30]


def test_an_unreadable_day_costs_the_gap_where_the_source_numbers_visits(tmp_path: Path) -> None:
    rows = [{**row, "visit": place} for row, place in zip(visit_rows(), (1, 2, 3, 1, 2, 1), strict=True)]
    rows[1]["day"] = "??"
    cohort, patients = read(tmp_path, rows, order="visit")
    assert [visit.gap for visit in patients["A"].visits] == [None, None, None]
    assert [visit.since for visit in patients["A"].visits] == [0, None, 90]
    assert cohort.skipped[0].detail.startswith("manifest.jsonl:2: patient 'A': the day or date '??'")
    samples = open_visits(site(tmp_path, rows, order="visit"), 16)
    assert samples.gaps([0, 1, 2]).isnan().tolist() == [False, True, True]
    assert samples.days("train") == [[0, 365]]


def test_the_lines_of_a_csv_are_named_too(tmp_path: Path) -> None:
    rows = visit_rows()
    rows[1]["age"] = 340
    folders.manifest(tmp_path)
    (tmp_path / "manifest.jsonl").unlink()
    folders.write_csv(tmp_path / "manifest.csv", [{**row, "image": row["image"][0]} for row in rows])
    config = CohortConfig(format="manifest", root=tmp_path, visits=VisitConfig(), max_skipped=1)
    cohort = load_cohort(SiteConfig(cohort=config))
    assert cohort.skipped[0].detail.startswith("manifest.csv:3: patient 'A': age 340 is no age")


def test_visit_numbers_that_nobody_asked_for_are_ignored(tmp_path: Path) -> None:
    folders.manifest(tmp_path, [{**row, "visit": "V-17"} for row in visit_rows()])
    cohort = load_cohort(SiteConfig(cohort=CohortConfig(format="manifest", root=tmp_path)))
    assert {study.visit for study in cohort.studies} == {None}
    assert summarise(cohort)["visits"] == {}
    assert cohort.skipped == []


def test_nothing_left_says_that_patients_have_too_few_visits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"3 patient\(s\) have fewer visits than 'visits: fewest' asks for"):
        read(tmp_path, fewest=4)


JUNK = st.sampled_from(
    [
        "",
        None,
        "x",
        -5,
        0,
        1,
        2,
        2.5,
        1e9,
        float("nan"),
        float("inf"),
        True,
        [],
        {},
        "F",
        "2020-13-01",
        "A",
        "71Y",
    ]
)


@settings(max_examples=40, deadline=None)
@given(
    junk=st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from(["day", "age", "sex", "visit", "patient_id", "when"]), JUNK
        ),
        max_size=12,
    ),
    order=st.sampled_from(["day", "visit", "file"]),
    same_day=st.sampled_from(["skip", "merge", "keep"]),
    dated=st.booleans(),
)
def test_no_table_makes_it_crash(
    tmp_path_factory: pytest.TempPathFactory, junk: Any, order: str, same_day: str, dated: bool
) -> None:
    rows = [{**row, "visit": index + 1, "when": "2020-01-02"} for index, row in enumerate(visit_rows())]
    for index, column, value in junk:
        rows[index][column] = value
    root = tmp_path_factory.getbasetemp() / "junk"
    folders.manifest(root, rows)
    config = CohortConfig(
        format="manifest",
        root=root,
        max_skipped=1.0,
        columns={"date": "when"} if dated else {},
        visits=VisitConfig.model_validate({"order": order, "same_day": same_day}),
    )
    try:
        cohort = load_cohort(SiteConfig(cohort=config))
    except DataError:  # nothing usable is left
        return
    for patient in group_patients(cohort.studies):
        numbers = [visit.number for visit in patient.visits]
        assert numbers == sorted(set(numbers))
        assert all(visit.gap is None or visit.gap >= 0 for visit in patient.visits)
        assert patient.age is None or 0 <= patient.age <= 120
        assert len({visit.study.sex for visit in patient.visits}) == 1


# ---- settings ----------------------------------------------------------------------------------------------


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


# ---- what a learner opens ----------------------------------------------------------------------------------


def test_batches_by_visit_number(tmp_path: Path) -> None:
    samples = open_visits(site(tmp_path), 16, tmp_path / "cache")
    assert samples.counts("train") == [2, 2, 1]
    assert samples.counts("test") == [1, 0, 0]
    assert samples.counts("train", 5) == [2, 2, 1, 0, 0]
    assert samples.rows("test", 2) == [] == samples.rows("train", 4)
    rows = samples.rows("train", 2)
    images, there = samples.images(rows)
    assert images.shape == (2, 1, 1, 16, 16)
    assert there.all()
    assert samples.reports(rows) == [folders.REPORTS[1], folders.REPORTS[4]]
    assert samples.priors(rows) == [folders.REPORTS[0], folders.REPORTS[3]]
    assert samples.gaps(rows).tolist() == [30, 365]
    assert samples.gaps(samples.rows("test")).tolist() == [0]
    assert samples.days("train") == [[0, 30, 90], [0, 365]]
    assert [samples.patients[samples.owners[row]].patient_id for row in rows] == ["A", "B"]
    assert samples.codes.shape == (6, 14)


def test_a_visit_with_fewer_images_is_padded_and_says_so(tmp_path: Path) -> None:
    rows = visit_rows()
    rows[1]["image"] = ["images/s1.png", "images/s2.png"]
    samples = open_visits(site(tmp_path, rows), 16)
    images, there = samples.images(samples.rows("train", 2))
    assert there.tolist() == [[True, True], [True, False]]
    assert images[1, 1].abs().sum() == 0
    assert torch.equal(images[0, 1], samples.images(samples.rows("train", 3))[0][0, 0])


def test_an_image_that_cannot_be_decoded_costs_the_visit_and_not_the_numbers(tmp_path: Path) -> None:
    config = site(tmp_path)
    (tmp_path / "images" / "s1.png").write_bytes(b"broken")
    samples = open_visits(config, 16)
    assert samples.counts("train") == [2, 1, 1]
    assert samples.skipped() == {"corrupt image": 1}
    assert samples.priors(samples.rows("train", 3)) == [folders.REPORTS[0]]


def test_a_site_where_everyone_came_once_has_nothing_of_visit_two(tmp_path: Path) -> None:
    rows = [row for row in visit_rows() if row["day"] == 0]
    samples = open_visits(site(tmp_path, rows), 16)
    assert (samples.last, samples.counts("train", 3)) == (1, [2, 0, 0])
    assert samples.images(samples.rows("train", 2))[0].shape == (0, 0, 1, 16, 16)
    assert summarise(samples.cohort)["visits"]["T"] == 1


def test_a_cohort_without_visits_is_refused_with_the_key_to_add(tmp_path: Path) -> None:
    folders.manifest(tmp_path)
    plain = SiteConfig(name="x", cohort=CohortConfig(format="manifest", root=tmp_path))
    with pytest.raises(ConfigError, match=r"add 'visits: \{\}' to the cohort"):
        open_visits(plain, 16)


def test_two_folders_pool_their_patients_apart(tmp_path: Path) -> None:
    parts = [site(tmp_path / name).cohort[0] for name in ("one", "two")]
    samples = open_visits(SiteConfig(name="both", cohort=tuple(parts)), 16)
    assert len(samples.patients) == 6
    assert samples.counts("train") == [4, 4, 2]


def test_summary_tells_visits_gaps_and_people(tmp_path: Path) -> None:
    facts = summarise(read(tmp_path)[0])["visits"]
    assert facts["patients_with"] == {"1": 1, "2": 1, "3": 1}
    assert facts["per_visit"] == {"train": [2, 2, 1], "val": [0, 0, 0], "test": [1, 0, 0]}
    assert facts["gaps"] == {"count": 3, "unknown": 0, "min": 30, "median": 60, "max": 365}
    assert facts["age"] == {"count": 3, "unknown": 0, "min": 40, "median": 60, "max": 70}
    assert facts["sex"] == {"F": 2, "M": 1}
    assert json.loads(json.dumps(facts)) == facts
