# SPDX-License-Identifier: Apache-2.0
"""Guesses of a folder's format by the names and first bytes of its files; each detector knows one layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.detection.columns import NAMES, guess_studies_table, mean_words
from medflare.data.detection.guess import CohortGuess
from medflare.data.detection.text_tables import guess_text_tables
from medflare.data.image_files import has_dicom_mark
from medflare.data.readers.tables import listing, read_table, tables_in

FORMAT_OF_FILE = {
    "manifest.jsonl": "manifest",
    "manifest.csv": "manifest",
    "notes.jsonl": "notes_jsonl",
    "questions.jsonl": "questions_jsonl",
    "summaries.jsonl": "summaries_jsonl",
}
"""File of a folder that names its format."""
LOOKED_AT = 20_000
"""Files of a folder that are listed at most; a layout shows in far fewer."""


class Folder:
    """A folder and the names of its files, listed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = sorted(_files(root))

    def having(self, *suffixes: str) -> list[Path]:
        """Return the files with one of these suffixes."""
        return [path for path in self.files if path.name.lower().endswith(suffixes)]

    def named(self, pattern: str) -> list[Path]:
        """Return the files below the folder that a pattern matches."""
        return [path for path in self.files if path.match(pattern)]


def guess_cohort(root: Path) -> CohortGuess:
    """Return the first guess that fits the files of a folder, the most specific layouts first.

    Raises:
        DataError: there is no such folder, or nothing in it is known; lists what it holds.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder. Name the folder that holds the files of the hospital.")
    folder = Folder(root)
    for detector in DETECTORS:
        guess = detector(folder)
        if guess is not None:
            return guess
    raise DataError(f"{root}: no known layout; the folder holds {listing(root)}. {_advice(folder)}")


def _advice(folder: Folder) -> str:
    if folder.having(".xlsx", ".xls", ".ods", ".parquet"):
        return "Save a spreadsheet or a parquet file as CSV (UTF-8): the first row names the columns."
    return (
        "Write a table (.csv or .jsonl) with one study (columns image and report), question (question, "
        "options, answer), text with its summary (findings, impression) or note (text) a row, or see the "
        "formats in docs/reference/readers.md."
    )


def _files(root: Path) -> Iterator[Path]:
    count = 0
    for path in root.rglob("*"):
        if path.is_file() and path.name[0] != ".":
            yield path
            count += 1
            if count >= LOOKED_AT:
                return


def _known_file(folder: Folder) -> CohortGuess | None:
    for name, format in FORMAT_OF_FILE.items():
        if (folder.root / name).is_file():
            return CohortGuess(format=format, reasons={"format": f"the folder has {name}"})
    return None


def _public_collections(folder: Folder) -> CohortGuess | None:
    marks = (
        ("mimic_cxr", "mimic-cxr-2.0.0-*.csv*", "tables of MIMIC-CXR-JPG"),
        ("iu_xray", "indiana_reports.csv", "the tables of Open-i's Indiana collection"),
        ("iu_xray", "ecgen-radiology/*.xml", "the XML files of Open-i's Indiana collection"),
        ("chexpert_plus", "df_chexpert_plus*.csv", "the table of CheXpert Plus"),
        ("r2gen", "annotation.json", "R2Gen's annotation.json"),
    )
    for format, pattern, reason in marks:
        if folder.named(pattern):
            return CohortGuess(format=format, reasons={"format": f"the folder has {reason}"})
    return None


def _annotated_files(folder: Folder) -> CohortGuess | None:
    stems = {path.with_suffix("") for path in folder.having(".txt")}
    if any(path.with_suffix("") in stems for path in folder.having(".ann")):
        return _notes("brat", "pairs of .txt and .ann files")
    if folder.having(".con"):
        return _notes("i2b2_2010", "concept files (.con)")
    if folder.having(".xmi"):
        return _notes("cas_xmi", "UIMA CAS files (.xmi)")
    if folder.having(".conll", ".bio", ".iob2"):
        return _notes("conll", "files of tagged tokens")
    return None


def _notes(format: str, reason: str, **settings: Any) -> CohortGuess:
    remark = (
        "Labels other than those of the inventory need 'label_map'; `medflare cohort inspect` names them."
        if settings.get("tasks") is None
        else "The texts carry no marks: 'tasks: []' reads them for `medflare extract -f`."
    )
    return CohortGuess(
        format=format, settings=settings, reasons={"format": f"the folder has {reason}"}, remarks=(remark,)
    )


def _databases(folder: Folder) -> CohortGuess | None:
    if (bulk := folder.having(".ndjson", ".ndjson.gz")) and "resourceType" in _first_row(bulk[0]):
        return _notes("fhir_ndjson", "a FHIR bulk export (.ndjson)", tasks=[])
    names = {path.name.lower().split(".")[0] for path in folder.files if path.parent == folder.root}
    if "note" in names or folder.having(".duckdb"):
        if {"note_nlp", "concept"} <= names:
            return _notes("omop", "OMOP's tables NOTE, NOTE_NLP and CONCEPT", label_map="omop")
        return _notes("omop", "OMOP's table NOTE", tasks=[])
    return None


def _label_studio(folder: Folder) -> CohortGuess | None:
    for path in (path for path in folder.having(".json") if path.parent == folder.root):
        with suppress(ValueError, OSError, RecursionError):
            tasks = json.loads(path.read_bytes().decode("utf-8-sig"))
            first = tasks[0] if isinstance(tasks, list) and tasks else None
            if isinstance(first, dict) and {"annotations", "annotation_id"} & set(first):
                return _notes("label_studio", f"an export of Label Studio ({path.name})", file=path.name)
    return None


def _annotated_lines(folder: Folder) -> CohortGuess | None:
    """Return the format of annotated notes in .jsonl files by the keys of the first row."""
    for path in (path for path in folder.having(".jsonl", ".jsonl.gz") if path.parent == folder.root):
        row = _first_row(path)
        keys = set(row)
        first = next((item for item in row.get("entities") or [] if isinstance(item, dict)), {})
        if {"doc_id", "text"} <= keys:
            return _notes("notes_jsonl", f"notes in JSON lines ({path.name})")
        if {"text", "spans"} <= keys or "_task_hash" in keys:
            return _notes("prodigy", f"an export of Prodigy ({path.name})")
        if "start_offset" in first or ("text" in keys and keys & {"label", "labels"}):
            return _notes("doccano", f"an export of doccano ({path.name})")
    return None


def _studies_table(folder: Folder) -> CohortGuess | None:
    for path in folder.having(".csv", ".csv.gz", ".tsv", ".jsonl", ".jsonl.gz"):
        with suppress(DataError):
            guess = guess_studies_table(path)
            if guess is not None:
                if path.parent != folder.root:
                    guess.settings["file"] = path.relative_to(folder.root).as_posix()
                return guess
    return None


def _dicom(folder: Folder) -> CohortGuess | None:
    if not any(has_dicom_mark(path) for path in folder.files[:200]):
        return None
    settings: dict[str, Any] = {}
    reasons = {"format": "the folder has DICOM files"}
    for path in folder.having(".csv", ".tsv", ".csv.gz"):
        with suppress(DataError):
            columns, rows, _ = read_table(path)
            chosen = _report_columns(columns, rows[:50])
            if chosen:
                settings |= {"file": path.relative_to(folder.root).as_posix(), "columns": chosen}
                reasons["file"] = f"{path.name} has a column of reports"
                break
    return CohortGuess(
        format="dicom_reports",
        settings=settings,
        reasons=reasons,
        remarks=("A study's report is its row of the table, its SR, or a .txt file named after it.",),
    )


def _text_table(folder: Folder) -> CohortGuess | None:
    return guess_text_tables(tables_in(folder.root))


def _plain_notes(folder: Folder) -> CohortGuess | None:
    """Return how text files are read that are most of a folder's; BRAT's reader takes them without marks."""
    if 2 * len(folder.having(".txt")) <= len(folder.files):
        return None
    return _notes("brat", "text files without annotation", tasks=[])


def _report_columns(columns: list[str], rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the columns of a table of reports that has no images: study, and report or its sections."""
    lowered = {column.lower(): column for column in columns}
    study = next((c for c in columns if NAMES["study_id"].search(c) or c.lower() in ("file", "image")), None)
    sections = {name: lowered[name] for name in ("findings", "impression") if name in lowered}
    texts = [column for column in columns if mean_words(column, rows) >= 4]
    if study is None or not (sections or texts):
        return {}
    report = next((c for c in texts if "report" in c.lower()), texts[0] if texts else "")
    chosen = {"study": study}
    return chosen | sections if sections else chosen | {"report": report}


def _first_row(path: Path) -> dict[str, Any]:
    with suppress(DataError):
        _, rows, _ = read_table(path)
        return rows[0] if rows else {}
    return {}


DETECTORS: tuple[Callable[[Folder], CohortGuess | None], ...] = (
    _known_file,
    _public_collections,
    _annotated_files,
    _databases,
    _label_studio,
    _annotated_lines,
    _studies_table,
    _dicom,
    _text_table,
    _plain_notes,
)
"""From the most specific layout to the least."""
