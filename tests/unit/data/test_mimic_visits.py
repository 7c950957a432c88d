# SPDX-License-Identifier: Apache-2.0
"""Visits of MIMIC-CXR's subjects with age and sex from MIMIC-IV, and of the public multi-site radiographs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import cohort_folders as folders
import pytest

from medflare.core.config import parse
from medflare.core.errors import ConfigError, DataError
from medflare.data.cohort import Cohort
from medflare.data.records import Patient
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.data.settings.visits import VisitConfig
from medflare.data.visit_samples import open_visits
from medflare.data.visits.longitudinal import group_patients
from site_builders import read_cohort

SUBJECT = "10000015"


def persons(root: Path, **changes: Any) -> Path:
    rows = [
        {"subject_id": f"100000{who}", "gender": "F", "anchor_age": 50, "anchor_year": 2178, "bmi": 20 + i}
        for i, who in enumerate(("11", "12", "13", "14", "15"))
    ]
    rows[-1] |= changes
    return folders.write_csv(root / "hosp" / "patients.csv.gz", rows).parent.parent


def rewrite(path: Path, column: str, values: dict[str, str]) -> None:
    """Sets `column` of the rows by dicom_id."""
    with path.open() as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row[column] = values.get(row["dicom_id"], row.get(column, ""))
    folders.write_csv(path, rows)


def read(root: Path, demographics: Path | None = None, **visits: Any) -> tuple[Cohort, dict[str, Patient]]:
    cohort = read_cohort("mimic_cxr", root, demographics=demographics, visits=visits, max_skipped=1.0)
    return cohort, {patient.patient_id: patient for patient in group_patients(cohort.studies)}


def test_two_studies_of_a_subject_are_two_visits_a_day_apart(tmp_path: Path) -> None:
    _, found = read(folders.mimic_cxr(tmp_path))
    assert [(visit.number, visit.gap) for visit in found[SUBJECT].visits] == [(1, None), (2, 1)]
    assert (found[SUBJECT].age, found[SUBJECT].sex) == (None, None)


def test_age_is_that_of_the_year_of_the_study(tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path / "cxr")
    _, found = read(root, persons(tmp_path / "iv"), covariates=["bmi"])
    assert (found[SUBJECT].age, found[SUBJECT].sex) == (52, "F")
    assert found[SUBJECT].visits[0].study.extra["bmi"] == "24"
    _, same = read(root, tmp_path / "iv" / "hosp" / "patients.csv.gz")
    assert same[SUBJECT].age == 52


def test_two_studies_of_one_day_are_told_apart_by_the_hour(tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path)
    metadata = root / "mimic-cxr-2.0.0-metadata.csv"
    rewrite(metadata, "StudyDate", {"dicom5": "21800514.0"})
    rewrite(metadata, "StudyTime", {"dicom4": "180000.0", "dicom5": "60000.25"})
    cohort, found = read(root, same_day="keep")
    assert [visit.study.study_id for visit in found[SUBJECT].visits] == ["50000005", "50000004"]
    assert found[SUBJECT].visits[1].gap == 0.5
    cohort, found = read(root)
    assert [(item.reason, item.record) for item in cohort.skipped] == [("two visits on one day", "50000004")]


@pytest.mark.parametrize(
    ("date", "reason"), [("", "no date"), ("21801340", "unreadable date"), ("soon", "unreadable date")]
)
def test_a_study_without_a_date_is_named_by_its_row(date: str, reason: str, tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path)
    rewrite(root / "mimic-cxr-2.0.0-metadata.csv", "StudyDate", {"dicom5": date})
    cohort, found = read(root)
    assert len(found[SUBJECT].visits) == 1
    assert [item.reason for item in cohort.skipped] == [reason]
    assert cohort.skipped[0].detail.startswith(f"mimic-cxr-2.0.0-split.csv.gz:7: patient '{SUBJECT}'")


@pytest.mark.parametrize("age", ["-3", "old", "400"])
def test_an_impossible_age_is_named_and_the_visits_stay(age: str, tmp_path: Path) -> None:
    cohort, found = read(folders.mimic_cxr(tmp_path / "cxr"), persons(tmp_path / "iv", anchor_age=age))
    assert found[SUBJECT].age is None
    assert len(found[SUBJECT].visits) == 2
    assert {item.reason for item in cohort.skipped} == {"impossible age"}


def test_a_subject_that_the_table_lacks_has_no_age(tmp_path: Path) -> None:
    iv = persons(tmp_path / "iv", subject_id="10009999")
    cohort, found = read(folders.mimic_cxr(tmp_path / "cxr"), iv, needs=["age"])
    assert SUBJECT not in found
    assert {item.reason for item in cohort.skipped} == {"no age", "patient without visits"}


def test_tables_that_are_not_there_are_named(tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path / "cxr")
    with pytest.raises(DataError, match=r"Check 'demographics' in site\.yaml"):
        read(root, tmp_path / "absent")
    with pytest.raises(DataError, match=r"names bmi; MIMIC-CXR has none"):
        read(root, covariates=["bmi"])
    with pytest.raises(DataError, match=r"names height\. Columns found: subject_id"):
        read(root, persons(tmp_path / "iv"), covariates=["height"])
    with pytest.raises(ConfigError, match="manifest does not read demographics"):
        parse(CohortConfig, {"format": "manifest", "root": ".", "demographics": "iv"}, "site.yaml")


# visits of each number over all splits, and the rows that cannot be placed
PUBLIC = {"radiopaedia": ([68, 19], 14), "eurorad": ([26, 11], 3), "journals": ([11, 3], 0)}


@pytest.mark.parametrize("name", list(PUBLIC))
def test_public_radiographs_become_visits(name: str, public_data: Path, tmp_path: Path) -> None:
    root = public_data / "cxr_multisite"
    if not root.is_dir():
        pytest.skip("cxr_multisite is not on this machine")
    columns = {"study_id": "id", "patient_id": "patient", "report": "radiology_text"}
    config = CohortConfig(
        format="manifest",
        root=root,
        file="records.jsonl",
        columns={**columns, "day": "offset_days", "split": None},
        select={"site": name},
        visits=VisitConfig(same_day="merge"),
        max_skipped=0.35,
    )
    samples = open_visits(SiteConfig(name=name, cohort=config), 32, tmp_path)
    totals = [sum(samples.counts(split, 2)[t] for split in ("train", "val", "test")) for t in range(2)]
    assert (totals, samples.skipped().get("no date", 0)) == PUBLIC[name]
    gaps = [visit.gap for visit in samples.visits if visit.number > 1]
    assert gaps
    assert all(gap is not None and gap >= 1 for gap in gaps)
    assert samples.images(samples.rows("train", 2))[0].shape[2:] == (1, 32, 32)
