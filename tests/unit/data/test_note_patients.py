# SPDX-License-Identifier: Apache-2.0
"""Notes whose format names no patient get theirs from a table, and are split by it."""

from __future__ import annotations

from pathlib import Path

import cohort_folders
import note_folders as folders
import pytest

from medflare.core.errors import ConfigError, DataError
from medflare.data.settings.site import load_site_file
from site_builders import read_cohort


def notes_of(root: Path, count: int, patients: int, name: str = "n{}") -> Path:
    """Notes of few patients, and the table that says whose they are; return the table."""
    rows = []
    for number in range(count):
        place = name.format(number)
        folders.brat(root, text=f"{folders.TEXT}\nNote {number}.", name=place)
        rows.append({"note": f"{place}.txt", "patient": f"p{number % patients}"})
    return cohort_folders.write_csv(root / "patients.csv", rows)


def test_all_notes_of_a_patient_are_in_one_split(tmp_path: Path) -> None:
    table = notes_of(tmp_path, 60, 12)
    cohort = read_cohort("brat", tmp_path, patients=table)
    assert cohort.skipped == []
    splits: dict[str, set[str]] = {}
    for note in cohort.notes:
        assert note.patient_id == f"p{int(note.note_id[1:]) % 12}"
        splits.setdefault(note.patient_id, set()).add(note.split)
    assert len(splits) == 12
    assert all(len(found) == 1 for found in splits.values())
    without: dict[str, set[str]] = {}
    for note in read_cohort("brat", tmp_path).notes:
        without.setdefault(f"p{int(note.note_id[1:]) % 12}", set()).add(note.split)
    assert any(len(found) > 1 for found in without.values()), "by note patients would be in two splits"


def test_a_name_alone_is_enough_where_no_other_note_has_it(tmp_path: Path) -> None:
    for ward in ("a", "b"):
        folders.brat(tmp_path / "notes", text=f"{folders.TEXT}\n{ward}.", name=f"{ward}/same")
        folders.brat(tmp_path / "notes", text=f"{folders.TEXT}\nOnly {ward}.", name=f"{ward}/only-{ward}")
    rows = [
        {"file": "only-a", "subject_id": "1"},
        {"file": ".\\b\\only-b.txt", "subject_id": "2"},
        {"file": "same", "subject_id": "3"},
    ]
    table = cohort_folders.write_csv(tmp_path / "who.csv", rows)
    cohort = read_cohort("brat", tmp_path / "notes", patients=table, max_skipped=0.5)
    assert {note.note_id: note.patient_id for note in cohort.notes} == {"a/only-a": "1", "b/only-b": "2"}
    assert {(item.record, item.reason) for item in cohort.skipped} == {
        ("a/same", "missing patient id"),
        ("b/same", "missing patient id"),
    }


def test_a_note_does_not_get_the_patient_of_one_whose_name_begins_alike(tmp_path: Path) -> None:
    for name in ("discharge", "discharge.addendum"):
        folders.brat(tmp_path, text=f"{folders.TEXT}\n{name}.", name=name)
    table = cohort_folders.write_csv(tmp_path / "p.csv", [{"note": "discharge.addendum", "patient": "p2"}])
    cohort = read_cohort("brat", tmp_path, patients=table, max_skipped=0.5)
    assert {note.note_id: note.patient_id for note in cohort.notes} == {"discharge.addendum": "p2"}


def test_a_note_of_two_patients_is_a_fault_and_a_table_without_columns_an_error(tmp_path: Path) -> None:
    notes_of(tmp_path, 3, 3)
    rows = [{"note": f"n{number}", "patient": f"p{number}"} for number in range(3)]
    table = cohort_folders.write_csv(tmp_path / "patients.csv", [*rows, {"note": "n0", "patient": "p9"}])
    cohort = read_cohort("brat", tmp_path, patients=table, max_skipped=0.5)
    assert [(item.record, item.reason) for item in cohort.skipped] == [("n0", "ambiguous patient")]
    cohort_folders.write_csv(table, [{"note": "n0", "person": "p0"}])
    with pytest.raises(DataError, match="'patient' should be column 'patient'"):
        read_cohort("brat", tmp_path, patients=table)


def test_the_table_s_place_counts_from_site_yaml_and_other_formats_name_patients_themselves(
    tmp_path: Path,
) -> None:
    notes_of(tmp_path / "notes", 3, 3)
    file = tmp_path / "site.yaml"
    file.write_text("name: a\ncohort: {format: brat, root: notes, patients: notes/patients.csv}\n")
    (site,) = load_site_file(file).values()
    assert site.cohort[0].patients == tmp_path / "notes/patients.csv"
    file.write_text("name: a\ncohort: {format: notes_jsonl, root: notes, patients: notes/patients.csv}\n")
    with pytest.raises(ConfigError, match="format notes_jsonl does not read patients"):
        load_site_file(file)
