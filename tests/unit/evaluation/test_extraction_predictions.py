# SPDX-License-Identifier: Apache-2.0
"""The file of extraction predictions: what goes in comes out, and what is wrong is named."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.core.errors import DataError
from medflare.core.json_lines import write_lines
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument, normalised
from medflare.tasks.prediction_files import holds_extraction, read_documents

PAIN = EntityMention("problem", ((3, 7),))
CHEST = EntityMention("bodyloc", ((0, 2), (5, 6)))


def document(**changes: Any) -> ScoredDocument:
    facts: dict[str, Any] = {
        "note_id": "n1",
        "patient_id": "p1",
        "site": "site-1",
        "adapter": "generic",
        "annotated": ("problem", "bodyloc"),
        "gold_entities": (PAIN,),
        "gold_links": (Link(PAIN, CHEST),),
        "predicted_entities": (),
        "links_gold_heads": (Link(PAIN, CHEST),),
        "outputs": 3,
        "faults": {"unclosed_tag": 1},
    }
    return ScoredDocument(**facts | changes)


def test_documents_survive_the_file(tmp_path: Path) -> None:
    written = [
        document(),
        document(note_id="n2", annotated=None, text="Schmerz über\u2028der Brust\n", faults={}),
    ]
    path = write_lines(tmp_path / "deep" / "predictions.jsonl", written)
    assert read_documents(path) == written
    assert holds_extraction(path)


def test_not_asked_and_nothing_found_stay_apart(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [document()])
    restored = read_documents(path)[0]
    assert restored.predicted_entities == ()
    assert restored.links_end_to_end is None


def test_text_of_a_note_is_not_written_unless_asked_for(tmp_path: Path) -> None:
    row = json.loads(write_lines(tmp_path / "p.jsonl", [document()]).read_text(encoding="utf-8"))
    assert "text" not in row
    assert (row["kind"], row["schema_version"]) == ("extraction", 1)


def test_blank_lines_and_missing_optional_fields_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    row = {"kind": "extraction", "schema_version": 1, "note_id": "n", "site": "s", "adapter": "none"}
    path.write_text(f"\n{json.dumps(row)}\r\n\n", encoding="utf-8")
    assert read_documents(path) == [ScoredDocument(note_id="n", site="s", adapter="none")]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=6))
def test_normalised_spans_cover_the_same_points_in_order_with_gaps(drawn: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in drawn]
    result = normalised(spans)
    points = {p for start, end in spans for p in range(start, end)}
    assert {p for start, end in result for p in range(start, end)} == points
    assert all(before[1] < after[0] for before, after in pairwise(result))
    assert normalised(result) == result


@pytest.mark.parametrize("spans", [(), ((3, 3),), ((4, 2),), ((-1, 2),)])
def test_impossible_spans_are_refused(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="span"):
        EntityMention("problem", spans)


GOOD = json.loads(document().model_dump_json(exclude_none=True))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", 'expected an object with "kind": "extraction"'),
        ('{"study_id": "s"}', "is not an extraction prediction"),
        (json.dumps(GOOD | {"schema_version": 7}), "schema version 7; this medflare reads version 1"),
        (
            json.dumps(GOOD | {"adapter": "best"}),
            "adapter: input should be 'generic', 'personalised' or 'none'",
        ),
        (json.dumps(GOOD | {"tasks": ["qa"]}), "tasks.0"),
        (json.dumps(GOOD | {"colour": 1}), "colour: extra inputs are not permitted"),
        (json.dumps(GOOD | {"faults": {"unclosed_tag": 4}}), "fault 'unclosed_tag' in 4 of 3 outputs"),
        (json.dumps(GOOD | {"faults": {"Ärger": 1}}), "is not the name of a fault"),
        (
            json.dumps(GOOD | {"gold_entities": [{"label": "problem", "spans": [[7, 3]]}]}),
            r"gold_entities.0: span \[7, 3\) is empty or negative",
        ),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"p\.jsonl:2: .*{expected}"):
        read_documents(path)


@pytest.mark.parametrize("content", [None, b"\n", b"\xff\xfe"])
def test_unusable_files_are_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"p\.jsonl"):
        read_documents(path)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"study_id": "s", "generated": ""}'])
def test_other_files_are_not_taken_for_extraction(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.jsonl").write_text(line, encoding="utf-8")
    assert not holds_extraction(tmp_path / "p.jsonl")
