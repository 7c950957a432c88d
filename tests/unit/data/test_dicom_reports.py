# SPDX-License-Identifier: Apache-2.0
"""Folders of DICOM files with reports: where a report is looked for, and what costs a study."""

from __future__ import annotations

from pathlib import Path

import cohort_folders as folders
import pytest

from medflare.core.errors import DataError
from medflare.data.cohort_summary import summarise
from medflare.data.readers.dicom_reports import years_of
from site_builders import read_cohort


def pair(root: Path, patient: str, uid: str, text: str | None, name: str = "IM1", **more: str) -> Path:
    """An image and its report beside it, both of one name, as a PACS exports each patient."""
    tags = {"StudyInstanceUID": uid, "PatientID": patient, "Modality": "DX", "BodyPartExamined": "CHEST"}
    folders.write_dicom(root / patient / name, folders.corner_image(), **(tags | more))
    if text is not None:
        (root / patient / f"{name}.txt").write_text(text)
    return root / patient


def test_header_gives_patient_age_view_and_day(tmp_path: Path) -> None:
    studies = read_cohort("dicom_reports", folders.dicom_reports(tmp_path), file="reports.csv").studies
    assert [study.patient_id for study in studies] == list(folders.PATIENTS)
    assert {(study.age, study.view) for study in studies} == {(45.0, "PA")}
    assert [study.day for study in studies] == [0.5, 0.5, 0.5, 0.5, 0.5, 1.5]


@pytest.mark.parametrize(
    ("age", "years"),
    [("045Y", 45.0), ("018M", 1.5), ("026W", 0.498), ("010D", 0.027), ("45", 45.0), ("", None), ("Y", None)],
)
def test_the_age_of_a_child_is_in_months_weeks_or_days(age: str, years: float | None) -> None:
    assert years_of(age) == (None if years is None else pytest.approx(years, abs=1e-3))


def test_other_objects_are_counted_and_a_study_without_a_report_is_a_fault(tmp_path: Path) -> None:
    cohort = read_cohort("dicom_reports", folders.dicom_reports(tmp_path), max_skipped=0.5)
    assert [(item.record, item.reason) for item in cohort.skipped] == [
        ("1.2.4", "no report"),
        ("1.2.5", "no report"),
    ]
    assert summarise(cohort)["left_out"] == {"object that is not a radiograph": 1}


@pytest.mark.parametrize(("sections", "words"), [("findings", "atelectasis"), ("impression", "see above")])
def test_sections_of_a_structured_report_are_told_by_their_names(
    sections: str, words: str, tmp_path: Path
) -> None:
    root = folders.dicom_reports(tmp_path)
    studies = read_cohort("dicom_reports", root, max_skipped=0.5, sections=sections).studies
    assert words in next(study.report.lower() for study in studies if study.study_id == "1.2.3")


def test_a_text_without_the_wanted_section_is_no_report(tmp_path: Path) -> None:
    """Its other parts name the patient, the reason and the doctor."""
    pair(tmp_path, "p0", "1.2.0", "NAME: Ann Miller\nINDICATION: Cough.\nIMPRESSION: Clear.\n")
    pair(tmp_path, "p1", "1.2.1", "The lungs are clear.")
    cohort = read_cohort("dicom_reports", tmp_path, max_skipped=0.6, sections="findings")
    assert [(study.patient_id, study.report) for study in cohort.studies] == [("p1", "The lungs are clear.")]
    assert [item.record for item in cohort.skipped] == ["1.2.0"]


def test_a_dose_report_is_no_report(tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path)
    dose = "1.2.840.10008.5.1.4.1.1.88.67"
    folders.write_structured_report(
        root / "s2" / "DOSE", "Dose of 0.1 mGy.", StudyInstanceUID="1.2.2", SOPClassUID=dose
    )
    cohort = read_cohort("dicom_reports", root, file="reports.csv")
    assert not any("mGy" in study.report for study in cohort.studies)
    assert len(cohort.studies) == 6
    assert summarise(cohort)["left_out"]["SR that is no report"] == 1


def test_reports_may_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path / "images")
    for index in (4, 5):
        path = tmp_path / "texts" / f"1.2.{index}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(folders.REPORTS[index])
    studies = read_cohort("dicom_reports", root, reports=tmp_path / "texts").studies
    assert {study.report for study in studies} == set(folders.REPORTS)


@pytest.mark.parametrize("name", ["accession", "text"])
def test_a_name_of_two_studies_gives_neither_of_them_a_report(name: str, tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path)
    rows = [{"accession": f"A{index}", "report": folders.REPORTS[index]} for index in (4, 5)]
    if name == "accession":
        again = {"StudyInstanceUID": "1.2.9", "PatientID": "p9", "AccessionNumber": "A4", "Modality": "DX"}
        folders.write_dicom(root / "s9" / "IM1", folders.corner_image(), **again)
        lost = ["1.2.4", "1.2.9"]
    else:
        rows, lost = rows[:1], ["1.2.5"]
        (root / "IM0.txt").write_text("Clear.")
    folders.write_csv(root / "reports.csv", rows)
    cohort = read_cohort("dicom_reports", root, file="reports.csv", max_skipped=0.5)
    assert [(item.record, item.reason) for item in cohort.skipped] == [
        (uid, "ambiguous report") for uid in lost
    ]


def test_texts_beside_images_of_one_name_stay_with_their_patients(tmp_path: Path) -> None:
    for number, words in enumerate(("Clear.", "Effusion.", "Pneumothorax.")):
        pair(tmp_path, f"p{number}", f"1.2.{number}", words)
    studies = read_cohort("dicom_reports", tmp_path).studies
    assert {study.patient_id: study.report for study in studies} == {
        "p0": "Clear.",
        "p1": "Effusion.",
        "p2": "Pneumothorax.",
    }


@pytest.mark.parametrize("other", ["damaged", "a CT", "gone"])
def test_a_patient_never_gets_the_report_of_one_whose_image_cannot_be_used(
    other: str, tmp_path: Path
) -> None:
    pair(tmp_path, "p0", "1.2.0", None)
    pair(tmp_path, "p3", "1.2.3", "Clear.", "IM2")
    of_another = pair(tmp_path, "p1", "1.2.1", "Large effusion of p1.", Modality="CT")
    if other == "damaged":
        (of_another / "IM1").write_bytes(b"\0" * 128 + b"DICM" + b"\xff" * 40)
    elif other == "gone":
        (of_another / "IM1").unlink()
    cohort = read_cohort("dicom_reports", tmp_path, max_skipped=0.9)
    assert [(study.patient_id, study.report) for study in cohort.studies] == [("p3", "Clear.")]


def test_an_image_named_by_its_uid_does_not_take_the_report_of_a_shorter_uid(tmp_path: Path) -> None:
    pair(tmp_path, "p0", "9.9.9", None, "1.2.3.4")
    pair(tmp_path, "p1", "1.2.7", "Clear.", "1.2.7.1")
    (tmp_path / "1.2.3.txt").write_text("Of the study 1.2.3, whose images are elsewhere.")
    cohort = read_cohort("dicom_reports", tmp_path, max_skipped=0.6)
    assert [(study.patient_id, study.report) for study in cohort.studies] == [("p1", "Clear.")]


@pytest.mark.parametrize("kind", ["rows", "texts"])
def test_two_reports_of_one_name_that_differ_are_a_fault(kind: str, tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path)
    if kind == "rows":
        rows = [{"accession": f"A{i}", "report": report} for i, report in ((4, "Clear."), (4, "Effusion."))]
        folders.write_csv(root / "reports.csv", [*rows, {"accession": "A5", "report": "Clear."}])
    else:
        (root / "old").mkdir()
        (root / "old" / "A0.txt").write_text("FINDINGS: An earlier version.\n")
    cohort = read_cohort("dicom_reports", root, file="reports.csv", max_skipped=0.5)
    assert [(item.record, item.reason) for item in cohort.skipped] == [
        ("1.2.4" if kind == "rows" else "1.2.0", "ambiguous report")
    ]
    assert len(cohort.studies) == 5
    same = "rows of the table" if kind == "rows" else "s0/A0.txt"
    assert same in cohort.skipped[0].detail


def test_a_table_may_name_images_by_their_path(tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path)
    rows = [{"image": f"s{index}/IM0", "report": f"Report {index}."} for index in range(6)]
    folders.write_csv(root / "reports.csv", rows)
    studies = read_cohort("dicom_reports", root, file="reports.csv").studies
    assert [study.report for study in studies] == [f"Report {index}." for index in range(6)]


def test_a_damaged_file_costs_itself_only(tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path)
    (root / "s9.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\xff" * 40)
    cohort = read_cohort("dicom_reports", root, file="reports.csv", max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == ["no study"]
    assert len(cohort.studies) == 6


def test_a_table_without_reports_lists_its_columns(tmp_path: Path) -> None:
    root = folders.dicom_reports(tmp_path)
    folders.write_csv(root / "reports.csv", [{"accession": "A4", "note": "x"}])
    with pytest.raises(DataError, match=r"no column holds the report.*accession, note"):
        read_cohort("dicom_reports", root, file="reports.csv")


def test_a_folder_without_dicom_files_says_what_it_holds(tmp_path: Path) -> None:
    folders.manifest(tmp_path)
    with pytest.raises(DataError, match=r"expected DICOM files; the folder holds images, manifest"):
        read_cohort("dicom_reports", tmp_path)
