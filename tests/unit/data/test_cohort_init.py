# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort init`: every layout is known again from its files, and the file that it writes is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cohort_folders
import export_folders
import note_folders
import pytest

from command_line import answer, facts, refusal
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site_file


def csv_of_studies(root: Path) -> Path:
    """A table with a hospital's own names for the columns, DICOM files in a folder, and no split."""
    rows = []
    for row in cohort_folders.manifest_rows():
        image = cohort_folders.write_png(
            root / "pictures" / f"{row['study_id']}.png", cohort_folders.corner_image()
        )
        rows.append(
            {
                "Accession": row["study_id"],
                "PatientID": row["patient_id"],
                "Path": f"pictures/{image.name}",
                "Report text": row["report"],
                "Gender": row["sex"],
                "hospital": "north" if len(rows) < 3 else "south",
            }
        )
    cohort_folders.write_csv(root / "export.csv", rows)
    return root


def bulk_export(root: Path) -> Path:
    report = export_folders.resource("DiagnosticReport", "final", conclusion="Clear.")
    cohort_folders.write_jsonl(root / "export.ndjson", [report])
    return root


def spreadsheet_of_questions(root: Path) -> Path:
    """Two sheets saved by a spreadsheet: options in columns, answers as numbers that begin with 0."""
    head = {"Nr": "7", "Question": "Which drug eases asthma?", "opa": "salbutamol", "opb": "insulin"}
    cohort_folders.write_csv(root / "train.csv", [head | {"Nr": f"{n}", "cop": str(n % 2)} for n in range(4)])
    cohort_folders.write_csv(root / "dev.csv", [head | {"Nr": f"d{n}", "cop": "1"} for n in range(2)])
    return root


def export_of_reports(root: Path) -> Path:
    """A radiology system's export with semicolons and letters of Windows, beside a list of devices."""
    root.mkdir()
    rows = [f"{n};P{n // 2};Herz normal groß. Lungen frei. Nr. {n};Unauffällig." for n in range(4)]
    text = "\n".join(["Accession;Patient ID;Findings;Impression", *rows])
    (root / "reports.csv").write_bytes(text.encode("cp1252"))
    (root / "devices.csv").write_text("device,room\nAX1,3\n")
    (root / "archive.csv.gz").write_bytes(b"\x1f\x8b cut off")
    return root


def sheet_of_notes(root: Path) -> Path:
    text = "Patient with asthma, on salbutamol twice a day, comes again with a dry cough."
    rows = [{"id": f"n{n}", "specialty": "chest", "transcription": f"{text} Visit {n}."} for n in range(3)]
    cohort_folders.write_csv(root / "notes.csv", rows)
    return root


def text_files(root: Path) -> Path:
    (root / "2024").mkdir(parents=True)
    for name in ("a.txt", "2024/b.txt", "2024/c.txt"):
        (root / name).write_text(f"Asthma, note {name}.")
    (root / "list.csv").write_text("file\na\n")
    return root


LAYOUTS: dict[str, tuple[str, Callable[[Path], Path], int]] = {
    "own manifest": ("manifest", cohort_folders.manifest, 6),
    "table of studies": ("manifest", csv_of_studies, 6),
    "r2gen": ("r2gen", cohort_folders.r2gen_iu, 5),
    "mimic": ("mimic_cxr", cohort_folders.mimic_cxr, 6),
    "indiana": ("iu_xray", cohort_folders.iu_csv, 6),
    "chexpert plus": ("chexpert_plus", cohort_folders.chexpert_plus, 6),
    "dicom": ("dicom_reports", cohort_folders.dicom_reports, 6),
    "brat": ("brat", note_folders.brat, 1),
    "cas": ("cas_xmi", export_folders.cas_xmi, 1),
    "label studio": ("label_studio", export_folders.label_studio, 1),
    "label studio, JSON-MIN": ("label_studio", export_folders.label_studio_min, 1),
    "doccano": ("doccano", export_folders.doccano, 1),
    "prodigy": ("prodigy", export_folders.prodigy, 1),
    "fhir": ("fhir_ndjson", bulk_export, 1),
    "omop": ("omop", export_folders.as_csv, 1),
    "sheets of questions": ("questions_jsonl", spreadsheet_of_questions, 6),
    "export of reports": ("summaries_jsonl", export_of_reports, 4),
    "sheet of notes": ("notes_jsonl", sheet_of_notes, 3),
    "text files": ("brat", text_files, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_known_and_the_written_file_reads_all_of_it(layout: str, tmp_path: Path) -> None:
    format, write, records = LAYOUTS[layout]
    root, file = write(tmp_path / "data"), tmp_path / "site.yaml"
    init = facts("cohort", "init", root, "--out", file)
    assert (init["format"], init["problems"]) == (format, [])
    read = facts("cohort", "inspect", file, "--no-images")
    found = sum(read[kind] for kind in ("studies", "notes", "questions", "summaries"))
    assert (found, read["unusable"]) == (records, 0)


def test_tables_of_texts_are_read_by_their_own_columns(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    questions = facts("cohort", "init", spreadsheet_of_questions(tmp_path / "questions"), "--out", file)
    chosen = {"question": "Question", "options": ["opa", "opb"], "answer": "cop"}
    assert questions["settings"] == {"columns": chosen, "first_index": 0}  # all files of the folder
    (cohort,) = (load_cohort(site) for site in load_site_file(file).values())
    assert Counter(item.answer for item in cohort.questions) == {"A": 2, "B": 4}
    assert {item.split for item in cohort.questions} == {"train", "val"}  # by the files' names
    reports = facts("cohort", "init", export_of_reports(tmp_path / "ris"), "--out", file, "--overwrite")
    chosen = {"patient_id": "Patient ID", "source": "Findings", "target": "Impression"}
    assert reports["settings"] == {"file": "reports.csv", "columns": chosen}
    (cohort,) = (load_cohort(site) for site in load_site_file(file).values())
    assert {item.patient_id for item in cohort.summaries} == {"P0", "P1"}
    assert cohort.summaries[0].source.startswith("Herz normal groß")
    notes = facts("cohort", "init", sheet_of_notes(tmp_path / "notes"), "--out", file, "--overwrite")
    assert notes["settings"] == {"columns": {"doc_id": "id", "text": "transcription"}, "tasks": []}
    (cohort,) = (load_cohort(site) for site in load_site_file(file).values())
    assert [item.note_id for item in cohort.notes] == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("head", "row", "format", "chosen"),
    [
        (
            "Frage,Antwort A,Antwort B,Richtig",
            "Was hilft?,Salbutamol,Insulin,A",
            "questions_jsonl",
            {"question": "Frage", "options": ["Antwort A", "Antwort B"], "answer": "Richtig"},
        ),
        (
            "Befund,Beurteilung",
            "Erguss rechts mit 3 cm.,Pleuraerguss.",
            "summaries_jsonl",
            {"source": "Befund", "target": "Beurteilung"},
        ),
    ],
)
def test_german_names_of_columns_are_known(
    head: str, row: str, format: str, chosen: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/export.csv").write_text(f"{head}\n{row}\n", encoding="utf-8")
    init = facts("cohort", "init", tmp_path / "data", "--out", tmp_path / "site.yaml")
    assert (init["format"], init["settings"]["columns"]) == (format, chosen)
    assert init["problems"] == []


@pytest.mark.parametrize("columns", ["question,answer,a", "question,answer,b,c", "findings,note", "name"])
def test_a_table_of_something_else_is_no_table_of_texts(columns: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(f"{columns}\n" + ",".join("1" for _ in columns.split(",")) + "\n")
    asked = refusal(3, "cohort", "init", tmp_path, "--out", tmp_path / "site.yaml")
    assert "no known layout; the folder holds table.csv" in asked
    assert "(question, options, answer)" in asked


def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path: Path) -> None:
    (tmp_path / "Befunde.xlsx").write_bytes(b"PK")
    assert "Save a spreadsheet" in refusal(3, "cohort", "init", tmp_path, "--out", tmp_path / "site.yaml")


def test_columns_are_told_by_names_and_values_and_explained_in_the_file(tmp_path: Path) -> None:
    root, file = csv_of_studies(tmp_path / "data"), tmp_path / "site.yaml"
    shown = answer("cohort", "init", root, "--out", file)
    text = file.read_text()
    assert "image: Path  # its values are files that exist" in text
    assert "patient_id: PatientID" in text
    assert "study_id: Accession" in text
    assert "sex: Gender" in text
    assert "'hospital' (2 values). --split-by" in text
    assert "The heart is enlarged" in shown


def test_a_column_of_hospitals_becomes_sites(tmp_path: Path) -> None:
    root, file = csv_of_studies(tmp_path / "data"), tmp_path / "site.yaml"
    answer("cohort", "init", root, "--out", file, "--split-by", "hospital")
    sites = facts("cohort", "inspect", file, "--no-images")
    assert [(site["name"], site["studies"]) for site in sites] == [("north", 3), ("south", 3)]
    assert "columns that seem one: hospital" in refusal(
        2, "cohort", "init", root, "--out", tmp_path / "other.yaml", "--split-by", "Gender"
    )


def test_several_folders_become_sites_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    north = cohort_folders.dicom_reports(tmp_path / "North Hospital")
    south, file = csv_of_studies(tmp_path / "south"), tmp_path / "site.yaml"
    init = facts("cohort", "init", north, south, "--out", file)
    assert {site: found["format"] for site, found in init["folders"].items()} == {
        "north-hospital": "dicom_reports",
        "south": "manifest",
    }
    sites = facts("cohort", "inspect", file, "--no-images")
    assert [(site["name"], site["studies"]) for site in sites] == [("north-hospital", 6), ("south", 6)]
    other = csv_of_studies(tmp_path / "elsewhere" / "south")
    asked = refusal(2, "cohort", "init", south, other, "--out", tmp_path / "other.yaml")
    assert "another folder is named south too" in asked
    asked = refusal(2, "cohort", "init", north, south, "--name", "x", "--out", tmp_path / "other.yaml")
    assert "speak of one folder" in asked
    assert not (tmp_path / "other.yaml").exists()


def test_a_table_without_patients_gets_ids_and_says_so(tmp_path: Path) -> None:
    rows = [{"image": row["image"], "report": row["report"]} for row in cohort_folders.manifest_rows()]
    cohort_folders.manifest(tmp_path / "data")
    (tmp_path / "data" / "manifest.jsonl").unlink()
    cohort_folders.write_jsonl(tmp_path / "data" / "studies.jsonl", rows)
    init = facts("cohort", "init", tmp_path / "data", "--out", tmp_path / "site.yaml")
    assert init["settings"]["columns"] == {
        "image": "image",
        "report": "report",
        "patient_id": None,
        "study_id": None,
    }
    assert "two studies of one person may be in training and test" in init["remarks"][0]
    assert facts("cohort", "inspect", tmp_path / "site.yaml")["patients"] == 6


def test_patients_who_come_again_are_named_and_their_days_are_read(tmp_path: Path) -> None:
    """A German export: 5.3.2024 is in March, and the folder's name has a letter that no site can have."""
    table = csv_of_studies(tmp_path / "Süd") / "export.csv"
    head, *lines = table.read_text().splitlines()
    rows = [f"{line},P{place // 2},{5 + place}.3.2024" for place, line in enumerate(lines)]
    head = head.replace("PatientID", "Insurance").replace("Gender", "Letter")
    table.write_text("\n".join([f"{head},patient,Study date", *rows]) + "\n")
    file = tmp_path / "site.yaml"
    init = facts("cohort", "init", tmp_path / "Süd", "--out", file)
    assert init["optional"] == {"visits": {"order": "day"}}
    line = "  # visits: {order: day}  # for fedtar and ct2replong: 3 of 3 patients come more than once\n"
    assert line in file.read_text()
    file.write_text(file.read_text().replace("# visits:", "visits:"))
    ((name, site),) = load_site_file(file).items()
    assert name == "sud"
    studies = load_cohort(site).studies
    assert [study.day for study in studies if study.patient_id == "P1"] == [0, 1]


@pytest.mark.parametrize(
    ("facts_of_row", "optional"),
    [
        ({"visit": (1, 2, 1)}, {"visits": {"order": "visit"}}),
        ({"day": (0, 9, 0), "visit": (1, 2, 1)}, {"visits": {"order": "day"}}),
        ({"visit": (1, None, 1)}, {}),
        ({}, {}),
    ],
)
def test_visits_are_offered_where_the_source_orders_them(
    facts_of_row: dict[str, tuple[int | None, ...]], optional: dict[str, object], tmp_path: Path
) -> None:
    root = cohort_folders.manifest(tmp_path / "data")
    rows = [json.loads(line) for line in (root / "manifest.jsonl").read_text().splitlines()[:3]]
    for place, row in enumerate(rows):
        row["patient_id"] = f"p{place // 2}"
        row.pop("day", None)
        row |= {name: values[place] for name, values in facts_of_row.items()}
    cohort_folders.write_jsonl(root / "manifest.jsonl", rows)
    assert facts("cohort", "init", root, "--out", tmp_path / "site.yaml")["optional"] == optional
    shown = answer("cohort", "init", root, "--out", tmp_path / "again.yaml")
    assert ("1 of 2 patients come more than once" in shown) == bool(optional)


def test_unknown_labels_are_listed_to_be_filled_in(tmp_path: Path) -> None:
    root = note_folders.brat(tmp_path / "data", ann="T1\tPhänomen 7 11\tpain\n")
    init = facts("cohort", "init", root, "--out", tmp_path / "site.yaml")
    assert init["settings"]["label_map"] == {"Phänomen": None}
    assert "which type?" in (tmp_path / "site.yaml").read_text()


def test_labels_of_a_known_corpus_get_its_map(tmp_path: Path) -> None:
    root = note_folders.brat(tmp_path / "data", ann="T1\tSign_symptom 7 11\tpain\n")
    init = facts("cohort", "init", root, "--out", tmp_path / "site.yaml")
    assert init["settings"]["label_map"] == "maccrobat"


def test_a_file_is_not_overwritten_and_an_unknown_folder_lists_what_it_holds(tmp_path: Path) -> None:
    root, file = csv_of_studies(tmp_path / "data"), tmp_path / "site.yaml"
    file.write_text("mine")
    assert "--overwrite replaces it" in refusal(2, "cohort", "init", root, "--out", file)
    assert file.read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.docx").write_text("x")
    asked = refusal(3, "cohort", "init", tmp_path / "other", "--out", tmp_path / "new.yaml")
    assert "the folder holds letter.docx" in asked
    assert not (tmp_path / "new.yaml").exists()


def test_too_many_bad_records_leave_the_file_and_say_why(tmp_path: Path) -> None:
    root = csv_of_studies(tmp_path / "data")
    text = (root / "export.csv").read_text()
    (root / "export.csv").write_text(text.replace("The lungs are clear. No acute disease.", ""))
    asked = refusal(3, "cohort", "init", root, "--out", tmp_path / "site.yaml")
    assert "max_skipped" in asked
    assert (tmp_path / "site.yaml").is_file()


def test_inspect_writes_what_it_skips_and_names_repeated_reports(tmp_path: Path) -> None:
    rows = cohort_folders.manifest_rows()
    for row in rows[:3]:
        row["report"] = "The lungs are clear."
    rows[5]["image"] = ["images/none.png"]
    root = cohort_folders.manifest(tmp_path / "data", rows)
    (tmp_path / "site.yaml").write_text(f"cohort: {{format: manifest, root: {root}, max_skipped: 0.5}}\n")
    shown = answer("cohort", "inspect", tmp_path / "site.yaml", "--skipped", tmp_path / "skipped.csv")
    assert "1 of 6 records (16.7%); max_skipped allows 50.0%" in " ".join(shown.split())
    assert "repeated word for word over patients: 3 records, 1 texts" in " ".join(shown.split())
    lines = (tmp_path / "skipped.csv").read_text().splitlines()
    assert lines[0] == "site,record,reason,detail"
    assert ",s5,missing image," in lines[1]


def test_a_part_of_a_corpus_without_training_records_is_split_anew(tmp_path: Path) -> None:
    rows = [
        {"id": f"r{n}", "findings": f"The lungs are clear {n}.", "impression": f"Normal {n}.", "split": "dev"}
        for n in range(60)
    ]
    cohort_folders.write_jsonl(tmp_path / "data" / "reports.jsonl", rows)
    answer("cohort", "init", tmp_path / "data", "-o", tmp_path / "site.yaml")
    written = (tmp_path / "site.yaml").read_text(encoding="utf-8")
    assert "ignore_source: true  # the source has no training records; patients are split 80/10/10" in written
    splits = facts("cohort", "inspect", tmp_path / "site.yaml")["splits"]
    assert all(splits[split]["summaries"] for split in ("train", "val", "test"))
    cohort_folders.write_jsonl(tmp_path / "data" / "reports.jsonl", [row | {"split": "test"} for row in rows])
    answer("cohort", "init", tmp_path / "data", "-o", tmp_path / "tests.yaml")
    assert "ignore_source" not in (tmp_path / "tests.yaml").read_text(encoding="utf-8")
