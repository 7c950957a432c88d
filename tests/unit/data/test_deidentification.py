# SPDX-License-Identifier: Apache-2.0
"""`deidentify` of site.yaml: refuse with places and without words, or replace with annotations that fit."""

from __future__ import annotations

from pathlib import Path

import cohort_folders
import note_folders
import pytest

from command_line import answer, facts
from medflare.core.errors import ConfigError, DataError
from site_builders import read_cohort

TEXT = "Seen by Dr. Alice Meyer on 03/14/1951 for severe pain .\nNo fever ."
ANN = (
    "T1\tproblem 49 53\tpain\nT2\tseverity 42 48\tsevere\nT3\ttemporal 27 37\t03/14/1951\n"
    "R1\thasAttr Arg1:T1 Arg2:T2\n"
)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "deidentify.key"
    path.write_bytes(bytes(range(32)))
    return path


def test_refuse_counts_and_names_places_and_quotes_nothing(tmp_path: Path) -> None:
    root = note_folders.brat(tmp_path / "notes", TEXT, ANN)
    with pytest.raises(DataError) as refused:
        read_cohort("brat", root, deidentify="refuse")
    said = str(refused.value)
    assert "2 identifiers stand in its texts (name 1, date 1)" in said
    assert "n1, text 12:23 (name)" in said
    assert "Meyer" not in said
    assert "1951" not in said


def test_replace_moves_annotations_with_their_words(tmp_path: Path, key: Path) -> None:
    root = note_folders.brat(tmp_path / "notes", TEXT, ANN)
    cohort = read_cohort("brat", root, deidentify="replace", deidentify_key=key)
    note = cohort.notes[0]
    words = note_folders.words(note)
    assert (words["T1"], words["T2"]) == ("pain", "severe")
    assert words["T3"] not in ("03/14/1951", "")
    assert words["T3"] in note.text
    assert "Meyer" not in note.text
    assert cohort.identifiers == {"name": 1, "date": 1}


def test_replace_reaches_reports_before_they_are_cleaned(tmp_path: Path, key: Path) -> None:
    rows = cohort_folders.manifest_rows()
    rows[0]["report"] = "Compared with 03/14/2021, Dr. Alice Meyer: the heart is enlarged."
    root = cohort_folders.manifest(tmp_path / "data", rows)
    study = read_cohort("manifest", root, deidentify="replace", deidentify_key=key).studies[0]
    assert "Meyer" not in study.report
    assert "heart is enlarged" in study.report


def test_replace_without_a_key_or_with_a_bad_one_says_how_to_make_it(tmp_path: Path) -> None:
    root = note_folders.brat(tmp_path / "notes", TEXT, ANN)
    with pytest.raises(ValueError, match="head -c 32 /dev/urandom"):
        read_cohort("brat", root, deidentify="replace")
    for content, said in ((None, "No such file"), (b"abc", "a key of 3 bytes")):
        path = tmp_path / "short.key"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            read_cohort("brat", root, deidentify="replace", deidentify_key=path)


def test_inspect_lists_kinds_headers_and_places_without_the_words(tmp_path: Path) -> None:
    root = cohort_folders.dicom_reports(tmp_path / "data")
    (root / "s0" / "A0.txt").write_text("FINDINGS: Seen by Dr. Alice Meyer. The heart is enlarged.")
    (tmp_path / "site.yaml").write_text(
        f"cohort: {{format: dicom_reports, root: {root}, file: reports.csv}}\n"
    )
    report = facts("cohort", "inspect", tmp_path / "site.yaml", "--identifiers")["identifiers"]
    assert report["kinds"] == {"name": 1}
    assert report["dicom_headers"] == 6
    assert {"PatientID", "StudyDate", "AccessionNumber"} <= set(report["dicom_tags"])
    assert (report["images"], report["burned_in"]) == (6, [])
    shown = answer("cohort", "inspect", tmp_path / "site.yaml", "--identifiers")
    assert "identifiers in 1 of 6 texts" in shown
    assert "Alice" not in shown
