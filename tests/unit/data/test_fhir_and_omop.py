# SPDX-License-Identifier: Apache-2.0
"""Texts of a FHIR bulk export and of an OMOP database, from every form that these come in."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cohort_folders as folders
import export_folders as exports
import note_folders
import pytest

from medflare.core.errors import DataError
from site_builders import read_cohort

PLAIN = {"contentType": "text/plain; charset=utf-8", "data": base64.b64encode(b"Severe pain.").decode()}
PAGE = "<div><h1>Note</h1><style>p {}</style><p>Severe&nbsp;<b>pain</b>.</p><p>No fever.</p></div>"
HTML = {"contentType": "text/html", "data": base64.b64encode(PAGE.encode()).decode()}
PDF = {"contentType": "application/pdf"}
BROKEN = PLAIN | {"data": "U2V2\nZXJl\r\nIHBhaW4u"}
LATIN = {
    "contentType": "text/plain; charset=ISO-8859-1",
    "data": base64.b64encode("Ödem.".encode("latin-1")).decode(),
}
ELSEWHERE = {"contentType": "text/plain", "url": "https://fhir.example/Binary/b1"}


def fhir(root: Path, *rows: dict[str, Any], **settings: Any) -> Any:
    folders.write_jsonl(root / "export.ndjson", rows)
    return read_cohort("fhir_ndjson", root, tasks=(), **settings)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (exports.resource(content=[{"attachment": PLAIN, "format": {"code": "x"}}]), "Severe pain."),
        (exports.resource(content=[{"attachment": HTML}]), "Note\nSevere pain.\nNo fever."),
        (exports.resource(content=[{"attachment": ELSEWHERE}]), "No fever."),
        (exports.resource("DiagnosticReport", "final", presentedForm=[PDF, PLAIN]), "Severe pain."),
        (exports.resource("DiagnosticReport", "final", presentedForm=[BROKEN]), "Severe pain."),
        (exports.resource("DiagnosticReport", "final", presentedForm=[LATIN]), "Ödem."),
        (exports.resource("DiagnosticReport", "final", presentedForm=[PDF], conclusion="Clear."), "Clear."),
        (exports.resource("DiagnosticReport", "amended", conclusion="Pneumonia."), "Pneumonia."),
        (exports.resource("DiagnosticReport", "final", text={"status": "generated", "div": PAGE}), "Note"),
    ],
)
def test_the_text_of_a_resource_is_read_from_where_it_stands(row: Any, text: str, tmp_path: Path) -> None:
    binary = {"resourceType": "Binary", "id": "b1", "data": base64.b64encode(b"No fever.").decode()}
    note = fhir(tmp_path, row, binary).notes[0]
    assert note.text.startswith(text)
    assert (note.note_id, note.patient_id) == (f"{row['resourceType']}/d1", "Patient/7")


@pytest.mark.parametrize("url", ["https://pacs.example/wado/b1", "Media/b1", "b1", "Binary/b1/note"])
def test_an_address_that_ends_like_a_binary_s_id_is_not_that_binary(url: str, tmp_path: Path) -> None:
    """Else a note gets the text of another patient."""
    row = exports.resource(content=[{"attachment": {"contentType": "text/plain", "url": url}}])
    binary = {"resourceType": "Binary", "id": "b1", "data": base64.b64encode(b"Of another.").decode()}
    good = exports.resource(id="d2", content=[{"attachment": PLAIN}])
    cohort = fhir(tmp_path, row, binary, good, max_skipped=0.6)
    assert [note.text for note in cohort.notes] == ["Severe pain."]
    assert [item.reason for item in cohort.skipped] == ["unreadable attachment"]


def test_two_binaries_of_one_id_that_differ_are_nobody_s_text(tmp_path: Path) -> None:
    binaries = [
        {"resourceType": "Binary", "id": name, "data": base64.b64encode(text).decode()}
        for name, text in (("b1", b"No fever."), ("b1", b"Fever."), ("b2", b"Clear."), ("b2", b"Clear."))
    ]
    rows = [
        exports.resource(id=name, content=[{"attachment": {"contentType": "text/plain", "url": url}}])
        for name, url in (("d1", "Binary/b1"), ("d2", "Binary/b2/_history/1"))
    ]
    cohort = fhir(tmp_path, *rows, *binaries, max_skipped=0.6)
    assert [(note.note_id, note.text) for note in cohort.notes] == [("DocumentReference/d2", "Clear.")]
    assert [item.reason for item in cohort.skipped] == ["ambiguous attachment"]


def test_one_person_is_one_patient_in_every_form_of_reference_and_after_a_merge(tmp_path: Path) -> None:
    forms = (
        "Patient/7",
        "https://fhir.example/r4/Patient/7",
        "Patient/7/_history/2",
        "Patient/6",
        "Patient/5",
    )
    rows = [
        exports.resource(id=f"d{number}", content=[{"attachment": PLAIN}], subject={"reference": form})
        for number, form in enumerate(forms)
    ]
    merges = {"6": "7", "4": "3", "3": "4", "5": "4"}  # of a circle nobody is merged
    patients = [
        {
            "resourceType": "Patient",
            "id": old,
            "link": [{"other": {"reference": f"Patient/{new}"}, "type": "replaced-by"}],
        }
        for old, new in merges.items()
    ]
    cohort = fhir(tmp_path, *rows, *patients)
    assert [note.patient_id for note in cohort.notes] == ["Patient/7"] * 4 + ["Patient/5"]
    assert cohort.annotation.lines_left_out == {}


def test_only_final_resources_are_read_and_others_are_counted(tmp_path: Path) -> None:
    rows = [
        exports.resource(content=[{"attachment": PLAIN}]),
        exports.resource(id="d2", status="entered-in-error"),
        exports.resource("DiagnosticReport", "preliminary", id="d3"),
        {"resourceType": "Practitioner", "id": "7"},
    ]
    cohort = fhir(tmp_path, *rows)
    assert len(cohort.notes) == 1
    assert cohort.annotation.lines_left_out == {
        "DocumentReference entered-in-error": 1,
        "DiagnosticReport preliminary": 1,
        "resource Practitioner": 1,
    }


def test_resources_are_selected_by_any_of_their_codes(tmp_path: Path) -> None:
    code = {"coding": [{"system": "http://loinc.org", "code": "18842-5"}], "text": "Discharge summary"}
    one = exports.resource(content=[{"attachment": PLAIN}], type=code)
    other = exports.resource(id="d2", content=[{"attachment": PLAIN}])
    for select in ({"code": ["18842-5", "11506-3"]}, {"code": "Discharge summary"}):
        assert [note.note_id for note in fhir(tmp_path, one, other, select=select).notes] == [
            "DocumentReference/d1"
        ]
    with pytest.raises(DataError, match="'select: author' is none of"):
        fhir(tmp_path, one, select={"author": "x"})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            exports.resource(content=[{"attachment": {"contentType": "application/pdf"}}]),
            "unreadable attachment",
        ),
        (exports.resource(content=[{"attachment": PLAIN | {"data": "%%"}}]), "unreadable attachment"),
        (
            exports.resource(content=[{"attachment": PLAIN | {"contentType": "text/plain; charset=idna"}}]),
            "unreadable attachment",
        ),
        (exports.resource(content=3), "malformed resource"),
        (exports.resource(content=[]), "empty note"),
        (exports.resource(id="d0", content=[{"attachment": PLAIN}]), "duplicated id"),
    ],
)
def test_a_bad_resource_costs_itself_only(row: Any, reason: str, tmp_path: Path) -> None:
    good = exports.resource(id="d0", content=[{"attachment": PLAIN}])
    cohort = fhir(tmp_path, good, row, max_skipped=0.6)
    assert [item.reason for item in cohort.skipped] == [reason]


def test_fhir_has_no_marks_and_says_so(tmp_path: Path) -> None:
    folders.write_jsonl(tmp_path / "export.ndjson", [exports.resource(content=[{"attachment": PLAIN}])])
    with pytest.raises(DataError, match=r"set 'tasks: \[\]'"):
        read_cohort("fhir_ndjson", tmp_path)


def as_parquet(root: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, rows in exports.TABLES.items():
        parquet.write_table(pyarrow.Table.from_pylist(rows), root / f"{name.lower()}.parquet")
    return root


def as_duckdb(root: Path) -> Path:
    duckdb = pytest.importorskip("duckdb")
    exports.as_csv(root / "csv")
    with duckdb.connect(str(root / "cdm.duckdb")) as database:
        for name in exports.TABLES:
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('{root / 'csv' / name}.csv')")
    return root


@pytest.mark.parametrize("write", [exports.as_csv, as_parquet, as_duckdb])
def test_an_omop_database_gives_notes_with_terms(write: Callable[[Path], Path], tmp_path: Path) -> None:
    cohort = read_cohort("omop", write(tmp_path), label_map="omop")
    note = cohort.notes[0]
    assert (note.note_id, note.patient_id, note.tasks) == ("1", "7", ("ner",))
    assert note_folders.words(note) == {"T1": "pain", "T2": "fever"}
    assert cohort.annotation.lines_left_out == {"term without a known concept": 1}
    assert read_cohort("omop", tmp_path, tasks=()).notes[0].entities == ()


def test_terms_without_concepts_say_what_is_missing(tmp_path: Path) -> None:
    (exports.as_csv(tmp_path) / "CONCEPT.csv").unlink()
    with pytest.raises(DataError, match=r"CONCEPT is missing.*'tasks: \[\]'"):
        read_cohort("omop", tmp_path, label_map="omop")
    assert len(read_cohort("omop", tmp_path, tasks=()).notes) == 1


def test_an_offset_that_does_not_fit_costs_its_note(tmp_path: Path) -> None:
    more = {"NOTE_ID": 2, "PERSON_ID": 8, "NOTE_TEXT": "Fever."}
    moved = {"note_nlp_id": 9, "note_id": 2, "offset": "3", "lexical_variant": "Fever"}
    folders.write_csv(exports.as_csv(tmp_path) / "NOTE.csv", [*exports.NOTE, more])
    folders.write_csv(tmp_path / "NOTE_NLP.csv", [*exports.TERMS, moved | {"note_nlp_concept_id": 10}])
    cohort = read_cohort("omop", tmp_path, label_map="omop", max_skipped=0.6)
    assert [(item.record, item.reason) for item in cohort.skipped] == [("2", "text mismatch")]


def test_a_folder_without_a_note_table_says_what_it_holds(tmp_path: Path) -> None:
    folders.write_csv(tmp_path / "person.csv", [{"person_id": 1}])
    with pytest.raises(DataError, match=r"expected a NOTE table.*person\.csv"):
        read_cohort("omop", tmp_path)


PERSONS = [{"person_id": 7, "gender_concept_id": 8532}, {"person_id": 8, "gender_concept_id": 8507}]
MORE = [
    {"NOTE_ID": 2, "PERSON_ID": 8, "NOTE_TEXT": "Fever."},
    {"NOTE_ID": 3, "PERSON_ID": 9, "NOTE_TEXT": "Chills."},
]


def with_persons(root: Path) -> Path:
    folders.write_csv(exports.as_csv(root) / "NOTE.csv", [*exports.NOTE, *MORE])
    folders.write_csv(root / "PERSON.csv", PERSONS)
    return root


def test_a_person_who_was_taken_out_of_the_database_trains_nothing(tmp_path: Path) -> None:
    cohort = read_cohort("omop", with_persons(tmp_path), tasks=(), max_skipped=0.5)
    assert [note.patient_id for note in cohort.notes] == ["7", "8"]
    assert cohort.annotation.lines_left_out == {"note of nobody in PERSON": 1}
    (tmp_path / "PERSON.csv").unlink()
    assert len(read_cohort("omop", tmp_path, tasks=()).notes) == 3


@pytest.mark.parametrize(
    ("select", "patients"),
    [
        ({"gender_concept_id": 8532}, ["7"]),
        ({"GENDER_CONCEPT_ID": [8507, 8532]}, ["7", "8"]),
        ({"note_id": [2, 3]}, ["8"]),
        ({"note_id": 1, "gender_concept_id": 8507}, []),
    ],
)
def test_notes_are_selected_by_their_own_columns_and_their_persons(
    select: dict[str, Any], patients: list[str], tmp_path: Path
) -> None:
    with_persons(tmp_path)
    if not patients:
        with pytest.raises(DataError):
            read_cohort("omop", tmp_path, tasks=(), select=select)
        return
    cohort = read_cohort("omop", tmp_path, tasks=(), select=select)
    assert [note.patient_id for note in cohort.notes] == patients


def test_a_column_that_neither_table_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'gender_concept'.*did you mean 'gender_concept_id'"):
        read_cohort("omop", with_persons(tmp_path), tasks=(), select={"gender_concept": 8532})
