# SPDX-License-Identifier: Apache-2.0
"""Names and texts that are none in UTF-8: the record is left out and counted, and all others are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cohort_folders
import note_folders
import pytest

from medflare.data.cohort_summary import summarise
from medflare.data.unencodable import escaped
from site_builders import read_cohort

LONE = "pain \ud800 here"


def named_in_latin_1(root: Path) -> str:
    folder = os.fsencode(note_folders.brat(root))
    for ending, content in ((b"txt", note_folders.TEXT), (b"ann", note_folders.ANN)):
        Path(os.fsdecode(folder + b"/d\xe9nis." + ending)).write_text(content)
    return "brat"


def a_note_with_a_lone_surrogate(root: Path) -> str:
    note_folders.jsonl(root, note_folders.row(), note_folders.row(doc_id="n2", text=note_folders.TEXT + LONE))
    return "notes_jsonl"


def a_label_with_a_lone_surrogate(root: Path) -> str:
    bad = note_folders.row(doc_id="n2")
    bad["entities"][1]["id"] = bad["relations"][0]["tail"] = LONE
    note_folders.jsonl(root, note_folders.row(), bad)
    return "notes_jsonl"


def a_question_with_one(root: Path) -> str:
    rows = [
        {"id": f"q{n}", "question": f"Number {n}?", "options": {"A": "one", "B": text}, "answer": "A"}
        for n, text in enumerate(("two", LONE))
    ]
    cohort_folders.write_jsonl(root / "rows.jsonl", rows)
    return "questions_jsonl"


def a_summary_with_one(root: Path) -> str:
    rows = [
        {"uid": f"r{n}", "findings": text, "impression": "Normal."} for n, text in enumerate(("Clear.", LONE))
    ]
    cohort_folders.write_jsonl(root / "rows.jsonl", rows)
    return "summaries_jsonl"


@pytest.mark.parametrize(
    "write",
    [
        named_in_latin_1,
        a_note_with_a_lone_surrogate,
        a_label_with_a_lone_surrogate,
        a_question_with_one,
        a_summary_with_one,
    ],
)
def test_such_a_record_is_left_out_and_the_others_stay(write: Callable[[Path], str], tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path), tmp_path, max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == ["not UTF-8"]
    assert "holds what is no text" in cohort.skipped[0].detail
    assert (cohort.count, cohort.records) == (1, 2)
    str(summarise(cohort)).encode()
    (cohort.skipped[0].record + cohort.skipped[0].detail).encode()


def test_a_study_of_a_manifest_is_left_out_by_report_patient_or_picture(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = cohort_folders.manifest_rows()
    good = read_cohort("manifest", cohort_folders.manifest(tmp_path / "good", rows)).count
    rows[0]["report"] = LONE
    rows[1]["patient_id"] = LONE
    bad = read_cohort("manifest", cohort_folders.manifest(tmp_path / "bad", rows), max_skipped=0.9)
    assert [item.reason for item in bad.skipped] == ["not UTF-8"] * 2
    assert bad.count == good - 2


def test_what_a_reader_says_of_such_a_name_can_be_printed(tmp_path: Path) -> None:
    folder = os.fsencode(note_folders.brat(tmp_path))
    Path(os.fsdecode(folder + b"/h\xe9l.txt")).write_text("No annotation.")
    (skipped,) = read_cohort("brat", tmp_path, max_skipped=0.5).skipped
    assert (skipped.record, skipped.reason) == ("h\\udce9l", "text without annotation")


def test_other_letters_stay_as_they_are() -> None:
    assert escaped("Fièvre, 発熱, 😀") == "Fièvre, 発熱, 😀"
