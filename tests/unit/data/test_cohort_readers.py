# SPDX-License-Identifier: Apache-2.0
"""Every format gives the same kind of cohort; a new format joins by one row."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cohort_folders as folders
import pytest

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import DataError
from medflare.data.cohort_summary import summarise
from medflare.data.readers.common import parse_sex
from medflare.data.samples import open_samples
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from site_builders import read_cohort


@dataclass(frozen=True)
class Case:
    """A format, the folder written for it, and what must be read from it."""

    format: str
    write: Callable[[Path], Path]
    studies: int
    patients: int
    images: int
    settings: dict[str, Any]


CASES = {
    "manifest": Case("manifest", folders.manifest, 6, 5, 6, {}),
    "manifest csv": Case("manifest", folders.manifest_csv, 6, 5, 6, {}),
    "r2gen iu": Case("r2gen", folders.r2gen_iu, 5, 5, 10, {}),
    "r2gen mimic": Case("r2gen", folders.r2gen_mimic, 6, 5, 7, {}),
    "mimic_cxr": Case("mimic_cxr", folders.mimic_cxr, 6, 5, 6, {}),
    "mimic_cxr PA only": Case("mimic_cxr", folders.mimic_cxr, 5, 4, 5, {"select": {"ViewPosition": "PA"}}),
    "iu csv": Case("iu_xray", folders.iu_csv, 6, 6, 12, {}),
    "iu frontal": Case("iu_xray", folders.iu_csv, 6, 6, 6, {"select": {"projection": "Frontal"}}),
    "iu xml": Case("iu_xray", folders.iu_xml, 6, 6, 6, {}),
    "chexpert_plus": Case("chexpert_plus", folders.chexpert_plus, 6, 5, 6, {}),
    "dicom_reports": Case("dicom_reports", folders.dicom_reports, 6, 5, 6, {"file": "reports.csv"}),
}


@pytest.fixture(params=list(CASES), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_format_reads_all_studies_and_skips_none(case: Case, tmp_path: Path) -> None:
    facts = summarise(read_cohort(case.format, case.write(tmp_path), **case.settings))
    assert facts["skipped"] == {}
    assert (facts["studies"], facts["patients"], facts["images"]) == (
        case.studies,
        case.patients,
        case.images,
    )
    assert json.loads(json.dumps(facts)) == facts


def test_format_gives_text_codes_and_one_split_per_patient(case: Case, tmp_path: Path) -> None:
    cohort = read_cohort(case.format, case.write(tmp_path), **case.settings)
    texts = " ".join(study.report for study in cohort.studies)
    assert "atelectasis" in texts
    assert "Impression" not in texts
    assert all(study.codes is not None and len(study.codes) == 14 for study in cohort.studies)
    splits = {(study.patient_id, study.split) for study in cohort.studies}
    assert len(splits) == case.patients
    assert {split for _, split in splits} <= {"train", "val", "test"}


def test_format_keeps_the_bright_corner_where_it_is(case: Case, tmp_path: Path) -> None:
    site = SiteConfig(cohort=CohortConfig(format=case.format, root=case.write(tmp_path), **case.settings))
    samples = open_samples(site, 32)
    pictures = samples.images(range(len(samples)))
    assert pictures.shape == (case.images, 1, 32, 32)
    assert (pictures[:, 0, 4:9, 6:10].mean((1, 2)) > 0.7).all()
    assert (pictures[:, 0, 4:9, -10:-6].mean((1, 2)) < 0.4).all()


def test_mimic_labels_follow_chexperts_convention(tmp_path: Path) -> None:
    codes = read_cohort("mimic_cxr", folders.mimic_cxr(tmp_path)).studies[0].codes
    assert codes is not None
    named = {CONDITIONS[index]: Code(code).name for index, code in enumerate(codes)}
    assert named["cardiomegaly"] == "POSITIVE"
    assert named["pneumonia"] == "UNCERTAIN"
    assert named["edema"] == "NEGATIVE"
    assert named["fracture"] == "BLANK"


def test_mimic_dates_become_days_since_the_first_study(tmp_path: Path) -> None:
    studies = read_cohort("mimic_cxr", folders.mimic_cxr(tmp_path)).studies
    assert [study.day for study in studies] == [0, 0, 0, 0, 0, 1]


def test_mimic_label_file_that_lacks_a_study_skips_it(tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path)
    path = root / "mimic-cxr-2.0.0-chexpert.csv.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:-1])))
    cohort = read_cohort("mimic_cxr", root, max_skipped=0.2)
    assert [(item.record, item.reason) for item in cohort.skipped] == [("50000005", "missing labels")]
    path.unlink()
    assert len(read_cohort("mimic_cxr", root).studies) == 6


def test_semicolons_and_old_encodings_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = folders.manifest(tmp_path)
    (root / "manifest.jsonl").unlink()
    text = "study_id;patient_id;image;report\n1;Müller;images/s0.png;The heart is enlarged, no effusion.\n"
    (root / "manifest.csv").write_bytes(text.encode("cp1252"))
    assert read_cohort("manifest", root).studies[0].patient_id == "Müller"
    assert "Windows-1252" in caplog.text


def test_mimic_reports_may_lie_elsewhere(tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path / "jpg")
    for path in list(root.rglob("*.txt")):
        moved = tmp_path / "txt" / path.relative_to(root)
        moved.parent.mkdir(parents=True, exist_ok=True)
        path.rename(moved)
    assert len(read_cohort("mimic_cxr", root, reports=tmp_path / "txt").studies) == 6


def test_sections_choose_findings_or_impression(tmp_path: Path) -> None:
    root = folders.mimic_cxr(tmp_path)
    assert read_cohort("mimic_cxr", root, sections="impression").studies[0].report == "Impression 0."
    with pytest.raises(DataError, match="empty report 1"):
        read_cohort("iu_xray", folders.iu_csv(tmp_path / "iu"), sections="findings")


def test_first_image_only_gives_one_sample_a_study(tmp_path: Path) -> None:
    cohort = read_cohort("r2gen", folders.r2gen_iu(tmp_path), study_images="first")
    assert all(len(study.images) == 1 for study in cohort.studies)


def test_columns_name_the_sources_own_and_lists_fall_back(tmp_path: Path) -> None:
    rows = [
        {"key": row["study_id"], "who": row["patient_id"], "img": row["image"][0]}
        for row in folders.manifest_rows()
    ]
    for index, row in enumerate(rows):
        row["short"], row["long"] = ("" if index == 0 else f"Short {index}."), f"Long {index}."
    root = folders.manifest(tmp_path, rows)
    names = {"study_id": "key", "patient_id": "who", "image": "img", "report": ["short", "long"]}
    reports = [study.report for study in read_cohort("manifest", root, columns=names).studies]
    assert reports[:2] == ["Long 0.", "Short 1."]


def test_wrong_column_names_file_columns_and_close_match(tmp_path: Path) -> None:
    root = folders.manifest(tmp_path)
    with pytest.raises(DataError) as caught:
        read_cohort("manifest", root, columns={"report": "reprot", "age": "years", "colour": "x"})
    message = str(caught.value)
    assert "manifest.jsonl: 3 column(s)" in message
    assert "did you mean 'report'?" in message
    assert "'colour'" in message or "colour" in message
    assert "patient_id" in message


def test_select_keeps_rows_and_checks_its_columns(tmp_path: Path) -> None:
    root = folders.manifest(tmp_path)
    assert len(read_cohort("manifest", root, select={"sex": "F"}).studies) == 3
    assert len(read_cohort("manifest", root, select={"sex": ["F", "M"], "view": "PA"}).studies) == 6
    with pytest.raises(DataError, match="did you mean 'sex'"):
        read_cohort("manifest", root, select={"sexx": "F"})


def test_manifest_labels_are_taken_as_codes(tmp_path: Path) -> None:
    rows = folders.manifest_rows()
    codes = [0] * 13 + [1]
    for row, value in zip(
        rows, (codes, " ".join(map(str, codes)), json.dumps(codes), {"no finding": 1}), strict=False
    ):
        row["labels"] = value
    for row in rows[4:]:
        row["labels"] = codes
    cohort = read_cohort("manifest", folders.manifest(tmp_path, rows))
    assert {study.codes for study in cohort.studies} == {tuple(codes)}


def test_missing_folder_and_missing_table_say_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        read_cohort("manifest", tmp_path / "absent")
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(DataError, match=r"expected manifest.jsonl or .* holds other.txt"):
        read_cohort("manifest", tmp_path)


@pytest.mark.parametrize(("name", "count"), [("maccrobat", 161), ("chia", 1622), ("phee", 3859)])
def test_public_note_sets_are_read_whole(public_data: Path, name: str, count: int) -> None:
    cohort = read_cohort("notes_jsonl", public_data / "ie" / name, label_map=name)
    assert (len(cohort.notes), cohort.skipped) == (count, [])


@pytest.mark.parametrize(
    ("written", "sex"),
    [
        ("F", "F"),
        (" male ", "M"),
        ("männlich", "M"),
        ("W", "F"),
        *((word, None) for word in ("missing", "masked", "Mx", "O", "", None)),
    ],
)
def test_a_sex_is_a_word_for_it_and_not_a_first_letter(written: str | None, sex: str | None) -> None:
    assert parse_sex(written) == sex
