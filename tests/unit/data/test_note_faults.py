# SPDX-License-Identifier: Apache-2.0
"""A note that contradicts itself is skipped and counted, with file and offset; too many stop the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import note_folders as folders
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medflare.core.errors import DataError
from medflare.data.cohort_summary import summarise
from medflare.data.readers import read_source
from medflare.data.settings.cohort import CohortConfig
from site_builders import read_cohort

PAIN = "T1\tproblem 7 11\tpain\n"

BRAT: dict[str, tuple[str, str | None, str, str]] = {
    "other words": (folders.TEXT, "T1\tproblem 8 12\tpain\n", "text mismatch", "n2.ann line 1: T1 at 8:12"),
    "past the end": (
        folders.TEXT,
        "T1\tproblem 50 99\tx\n",
        "offset outside text",
        "n2.ann line 1: T1 at 50:99",
    ),
    "empty span": (folders.TEXT, "T1\tproblem 7 7\t\n", "offset outside text", "n2.ann line 1: T1 at 7:7"),
    "id used twice": (folders.TEXT, PAIN + PAIN, "duplicated id", "n2.ann: T1"),
    "relation id twice": (
        folders.TEXT,
        folders.ANN + "R1\thasAttr Arg1:T4 Arg2:T5\n",
        "duplicated id",
        "n2.ann: R1",
    ),
    "empty note": (" \r\n", PAIN, "empty note", "n2.txt, offset 0"),
    "unknown type": (folders.TEXT, PAIN + "T2\tGrade 0 6\tSevere\n", "unknown type", "n2.ann: T2 at 0:6"),
    "no such entity": (
        folders.TEXT,
        PAIN + "R1\thasAttr Arg1:T1 Arg2:T9\n",
        "relation without entity",
        "n2.ann line 2: hasAttr names T9",
    ),
    "one argument": (folders.TEXT, PAIN + "R1\thasAttr Arg1:T1\n", "malformed relation", "n2.ann line 2"),
    "no offsets": (folders.TEXT, "T1\tproblem pain\n", "malformed entity", "n2.ann line 1"),
    "no BRAT": (folders.TEXT, "pain is a problem\n", "malformed line", "n2.ann line 1"),
    "no annotation": (folders.TEXT, None, "text without annotation", "n2.txt"),
}


@pytest.mark.parametrize("case", BRAT)
def test_a_bad_brat_note_is_skipped_with_file_and_offset_up_to_a_limit(case: str, tmp_path: Path) -> None:
    text, ann, reason, place = BRAT[case]
    folders.brat(folders.brat(tmp_path), text, ann, "n2")
    cohort = read_cohort("brat", tmp_path, max_skipped=0.5)
    assert [(item.record, item.reason) for item in cohort.skipped] == [("n2", reason)]
    assert place in cohort.skipped[0].detail
    assert [note.note_id for note in cohort.notes] == ["n1"]
    assert (cohort.records, summarise(cohort)["skipped"][reason]["count"]) == (2, 1)
    with pytest.raises(DataError, match=f"1 of 2 records cannot be used.*{reason} 1") as raised:
        read_cohort("brat", tmp_path)
    assert place in str(raised.value)


def test_an_annotation_without_its_text_is_skipped(tmp_path: Path) -> None:
    folders.write(folders.brat(tmp_path) / "n2.ann", PAIN)
    cohort = read_cohort("brat", tmp_path, max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == ["annotation without text"]


def test_a_text_that_is_not_utf8_is_skipped(tmp_path: Path) -> None:
    (folders.brat(tmp_path) / "n2.txt").write_bytes(b"caf\xe9 au lait")
    (tmp_path / "n2.ann").write_bytes(b"")
    cohort = read_cohort("brat", tmp_path, max_skipped=0.5)
    assert "n2.txt, byte 3: is not UTF-8" in cohort.skipped[0].detail


def test_a_mismatch_says_where_the_words_stand(tmp_path: Path) -> None:
    folders.brat(folders.brat(tmp_path), ann="T1\tproblem 43 48\tfever\n", name="n2")
    detail = read_cohort("brat", tmp_path, max_skipped=0.5).skipped[0].detail
    assert "should read 'fever', the text has 'o fev'; those words stand at 45" in detail


def entity(**changes: Any) -> list[dict[str, Any]]:
    return [{"id": "T1", "label": "problem", "spans": [[7, 11]], **changes}]


@pytest.mark.parametrize(
    ("change", "reason", "place"),
    [
        ({"text": " "}, "empty note", "row 2, offset 0"),
        ({"text": None}, "empty note", "row 2, offset 0"),
        ({"split": "later"}, "unknown split", "row 2"),
        ({"entities": entity(spans=[[0, 99]]), "relations": []}, "offset outside text", "T1 at 0:99"),
        ({"entities": entity(spans=[]), "relations": []}, "malformed entity", "T1 has no span"),
        ({"entities": entity(text="fever"), "relations": []}, "text mismatch", "T1 at 7:11"),
        ({"entities": entity(label="Grade"), "relations": []}, "unknown type", "row 2: T1 at 7:11"),
        ({"entities": entity() * 2, "relations": []}, "duplicated id", "T1"),
        ({"entities": {"T1": 1}}, "malformed entities", "row 2"),
        ({"relations": [{"type": "x", "head": "T9", "tail": "T1"}]}, "relation without entity", "T9"),
        ({"relations": [{"head": "T2", "tail": "T1"}]}, "malformed relation", "row 2"),
        ({"doc_id": "n1"}, "duplicated note", "row 2"),
    ],
)
def test_a_bad_json_note_is_skipped_with_row_and_offset(
    change: dict[str, Any], reason: str, place: str, tmp_path: Path
) -> None:
    root = folders.jsonl(tmp_path, folders.row(), folders.row(**{"doc_id": "n2", **change}))
    cohort = read_cohort("notes_jsonl", root, max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == [reason]
    assert place in cohort.skipped[0].detail
    assert "train.jsonl" in cohort.skipped[0].detail
    assert len(cohort.notes) == 1


JUNK = {
    "brat": (".ann", "TREAM#*12\tproblem :;\n x"),
    "i2b2_2010": (".con", 'c="pain" 1:0||t=rp\n'),
    "conll": (".conll", "-DOCSTART- \tBIOESX\nproblem"),
}


@pytest.mark.parametrize("format", JUNK)
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_a_note_or_a_skip(
    format: str, data: st.DataObject, tmp_path: Path
) -> None:
    suffix, alphabet = JUNK[format]
    if format in ("brat", "i2b2_2010"):
        folders.write(tmp_path / "n1.txt", folders.TEXT)
    folders.write(tmp_path / f"n1{suffix}", data.draw(st.text(alphabet=alphabet, max_size=40)))
    records = read_source(CohortConfig(format=format, root=tmp_path))
    assert len(records.notes) + len(records.skipped) >= 1


NUMBERS = st.integers(-2, 60) | st.floats() | st.none() | st.text(max_size=3)
ITEMS = st.dictionaries(
    st.sampled_from(["id", "label", "native", "type", "head", "tail", "spans", "text"]),
    NUMBERS | st.lists(NUMBERS | st.lists(NUMBERS, max_size=3), max_size=3),
)


@given(st.lists(ITEMS | NUMBERS, max_size=3), st.lists(ITEMS | NUMBERS, max_size=3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_row_holds_it_is_a_note_or_a_skip(
    tmp_path: Path, entities: list[Any], relations: list[Any]
) -> None:
    root = folders.jsonl(tmp_path, folders.row(entities=entities, relations=relations))
    records = read_source(CohortConfig(format="notes_jsonl", root=root))
    assert len(records.notes) + len(records.skipped) == 1


def test_a_folder_without_notes_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_cohort("brat", tmp_path / "absent")
    folders.write(tmp_path / "notes.doc", "x")
    with pytest.raises(DataError, match=r"expected .txt and .ann files; the folder holds notes.doc"):
        read_cohort("brat", tmp_path)
