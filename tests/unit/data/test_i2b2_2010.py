# SPDX-License-Identifier: Apache-2.0
"""i2b2/VA 2010: concepts by line and token, relations by place, both layouts, and files that do not fit."""

from __future__ import annotations

from pathlib import Path

import note_folders as folders
import pytest

from medflare.data.readers.common import SourceRecords
from medflare.data.readers.i2b2_2010 import read
from medflare.data.settings.cohort import CohortConfig
from site_builders import read_cohort

TEXT = (
    "CHIEF COMPLAINT :\nThe patient has  Chest Pain ; ECG was normal .\nHe was given Aspirin for the pain .\n"
)
CON = (
    'c="chest pain" 2:4 2:5||t="problem"\n'
    'c="ecg" 2:7 2:7||t="test"\n'
    'c="aspirin" 3:3 3:3||t="treatment"\n'
    'c="the pain" 3:5 3:6||t="problem"\n'
)
AST = 'c="chest pain" 2:4 2:5||t="problem"||a="present"\nc="the pain" 3:5 3:6||t="problem"||a="present"\n'
REL = 'c="aspirin" 3:3 3:3||r="TrAP"||c="the pain" 3:5 3:6\n'
LAYOUTS = {"flat": ("", "", "", ""), "folders": ("txt/", "concept/", "ast/", "rel/")}


def challenge(root: Path, layout: str = "flat", con: str = CON, rel: str = REL, text: str = TEXT) -> Path:
    parts = zip(LAYOUTS[layout], ("txt", "con", "ast", "rel"), (text, con, AST, rel), strict=True)
    for folder, suffix, content in parts:
        folders.write(root / f"{folder}record-13.{suffix}", content)
    return root


def source(root: Path) -> SourceRecords:
    return read(CohortConfig(format="i2b2_2010", root=root))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_concepts_and_relations_are_found_by_line_and_token(layout: str, tmp_path: Path) -> None:
    note = source(challenge(tmp_path, layout)).notes[0]
    assert note.note_id == "record-13"
    assert list(folders.words(note).values()) == ["Chest Pain", "ECG", "Aspirin", "the pain"]
    assert [entity.label for entity in note.entities] == ["problem", "test", "treatment", "problem"]
    assert [(r.label, r.head, r.tail) for r in note.relations] == [("TrAP", "T3", "T4")]


def test_tokens_may_also_be_counted_between_runs_of_space(tmp_path: Path) -> None:
    con = CON.replace("2:4 2:5", "2:3 2:4").replace("2:7 2:7", "2:6 2:6")
    note = source(challenge(tmp_path, con=con)).notes[0]
    assert list(folders.words(note).values()) == ["Chest Pain", "ECG", "Aspirin", "the pain"]


def test_line_ends_of_windows_do_not_move_tokens(tmp_path: Path) -> None:
    note = source(challenge(tmp_path, text=TEXT.replace("\n", "\r\n"))).notes[0]
    assert list(folders.words(note).values()) == ["Chest Pain", "ECG", "Aspirin", "the pain"]


def test_lower_case_does_not_move_offsets(tmp_path: Path) -> None:
    assert len("İ".lower()) == 2
    con = 'c="chest pain" 1:2 1:3||t="problem"\n'
    note = source(challenge(tmp_path, con=con, rel="", text="İ has Chest Pain\n")).notes[0]
    assert list(folders.words(note).values()) == ["Chest Pain"]


def test_hospitals_and_splits_are_folders(tmp_path: Path) -> None:
    challenge(tmp_path / "train" / "beth", "folders")
    challenge(tmp_path / "test", "folders")
    splits = {note.note_id: note.split for note in source(tmp_path).notes}
    assert splits == {"train/beth/record-13": "train", "test/record-13": "test"}


def test_the_annotation_covers_entities_and_the_map_leaves_treatments_out(tmp_path: Path) -> None:
    expected = {"": ("problem", "treatment", "test"), "i2b2_2010": ("problem", "test")}
    for name, covered in expected.items():
        settings = {"label_map": name} if name else {}
        cohort = read_cohort("i2b2_2010", challenge(tmp_path), **settings)
        note = cohort.notes[0]
        assert (note.tasks, note.annotated) == (("ner",), covered)
        assert note.relations == ()
        assert cohort.annotation.relations_outside == {"TrAP": 1}
        assert cohort.annotation.lines_left_out == {"assertion": 2}


def test_a_concept_that_is_listed_twice_is_one(tmp_path: Path) -> None:
    records = source(challenge(tmp_path, con=CON + CON.splitlines()[0] + "\n"))
    assert (len(records.notes[0].entities), records.left_out["repeated concept"]) == (4, 1)


@pytest.mark.parametrize(
    ("change", "reason", "place"),
    [
        ({"con": 'c="ecg" 2:9 2:9||t="test"\n'}, "text mismatch", "record-13.con line 1: T1 at 56:62"),
        ({"con": 'c="ecg" 9:0 9:0||t="test"\n'}, "offset outside text", "record-13.con line 1: no token 9:0"),
        ({"con": 'c="ecg" 2:40 2:40||t="test"\n'}, "offset outside text", "no token 2:40"),
        ({"con": "ecg 2:7 2:7 test\n"}, "malformed entity", "record-13.con line 1"),
        ({"rel": REL.replace("3:3 3:3", "3:2 3:2")}, "relation without entity", "record-13.rel line 1"),
        ({"rel": "aspirin TrAP pain\n"}, "malformed relation", "record-13.rel line 1"),
        ({"text": "\n"}, "empty note", "record-13.txt, offset 0"),
    ],
)
def test_a_bad_record_is_skipped_with_file_and_place(
    change: dict[str, str], reason: str, place: str, tmp_path: Path
) -> None:
    records = source(challenge(tmp_path, **change))
    assert ([item.reason for item in records.skipped], records.notes) == ([reason], [])
    assert place in records.skipped[0].detail


def test_texts_and_concepts_come_in_pairs(tmp_path: Path) -> None:
    folders.write(tmp_path / "txt" / "a.txt", TEXT)
    folders.write(tmp_path / "concept" / "b.con", CON)
    reasons = {item.record: item.reason for item in source(tmp_path).skipped}
    assert reasons == {"a": "text without annotation", "b": "annotation without text"}
