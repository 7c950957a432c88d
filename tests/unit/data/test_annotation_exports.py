# SPDX-License-Identifier: Apache-2.0
"""Exports of annotation tools: one note comes out alike from every format, and a bad record costs itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import export_folders as exports
import note_folders as folders
import pytest

from medflare.core.errors import DataError
from medflare.data.records import Note
from site_builders import read_cohort

TEXT = exports.TEXT
FORMATS: dict[str, Callable[[Path], Path]] = {
    "label_studio": exports.label_studio,
    "doccano": exports.doccano,
    "prodigy": exports.prodigy,
    "cas_xmi": exports.cas_xmi,
}


def one_note(format: str, root: Path, **settings: Any) -> Note:
    notes: list[Note] = read_cohort(format, root, **settings).notes
    assert len(notes) == 1
    return notes[0]


@pytest.mark.parametrize("format", FORMATS)
def test_every_export_gives_the_same_note(format: str, tmp_path: Path) -> None:
    note = one_note(format, FORMATS[format](tmp_path))
    assert (note.text, note.split) == (TEXT, "val")
    marked = {(entity.label, TEXT[s:e]) for entity in note.entities for s, e in entity.spans}
    assert marked == {
        ("problem", "pain"),
        ("severity", "severe"),
        ("problem", "fever"),
        ("negation", "No"),
    }
    words = folders.words(note)
    assert {(words[a], words[b]) for a, b in folders.links(note)} == {("pain", "severe"), ("fever", "No")}
    assert note.patient_id == ("dev/n1" if format == "cas_xmi" else "p1")


@pytest.mark.parametrize("format", FORMATS)
def test_texts_alone_are_read_where_no_task_is_set(format: str, tmp_path: Path) -> None:
    note = one_note(format, FORMATS[format](tmp_path), tasks=())
    assert (note.text, note.entities, note.tasks) == (TEXT, (), ())


def test_label_studio_offsets_may_be_code_points(tmp_path: Path) -> None:
    note = one_note("label_studio", exports.label_studio(tmp_path, count=lambda offset: offset))
    assert sorted(folders.words(note).values()) == ["No", "fever", "pain", "severe"]


def test_json_min_of_label_studio_has_spans_without_links(tmp_path: Path) -> None:
    note = one_note("label_studio", exports.label_studio_min(tmp_path))
    assert (note.note_id, note.patient_id, note.split) == ("7", "p1", "val")
    assert sorted(folders.words(note).values()) == ["No", "fever", "pain", "severe"]
    assert folders.links(note) == set()


def test_links_of_label_studio_need_no_name(tmp_path: Path) -> None:
    root = exports.label_studio(tmp_path)
    (task,) = json.loads((root / "export.json").read_text())
    for result in task["annotations"][0]["result"]:
        if result["type"] == "relation":
            del result["labels"]
    folders.write(root / "export.json", json.dumps([task]))
    assert len(folders.links(one_note("label_studio", root))) == 2


@pytest.mark.parametrize("key", ["label", "labels"])
def test_doccano_names_its_lists_of_spans_label_or_labels(key: str, tmp_path: Path) -> None:
    folders.jsonl(tmp_path, {"id": 1, "text": "pain", key: [[0, 4, "problem"]], "Comments": []})
    assert folders.words(one_note("doccano", tmp_path)) == {"S1": "pain"}


def test_label_studio_counts_what_it_leaves_out(tmp_path: Path) -> None:
    both = {"start": 0, "end": 4, "labels": ["problem", "test"]}
    result = [{"id": "r1", "type": "labels", "value": both}]
    more = [{"result": [], "was_cancelled": True}, {"result": result}, {"result": []}]
    cohort = read_cohort("label_studio", exports.label_studio(tmp_path, annotations=more))
    assert [entity.label for entity in cohort.notes[0].entities] == ["problem"]
    assert cohort.annotation.lines_left_out == {
        "cancelled annotation": 1,
        "further annotation of a task": 1,
        "further label of a span": 1,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": {"body": TEXT}}, "empty note"),
        ({"annotations": []}, "text without annotation"),
        ({"annotations": [{"result": [{"type": "labels", "value": {"start": 1}}]}]}, "malformed entity"),
        ({"annotations": [{"result": [{"type": "relation", "labels": []}]}]}, "relation without entity"),
        ({"annotations": 3}, "malformed task"),
    ],
)
def test_a_bad_task_of_label_studio_is_skipped(changes: Any, reason: str, tmp_path: Path) -> None:
    exports.label_studio(tmp_path)
    good = json.loads((tmp_path / "export.json").read_text())
    bad = json.loads((exports.label_studio(tmp_path / "bad", **changes) / "export.json").read_text())
    folders.write(tmp_path / "export.json", json.dumps(good + bad))
    cohort = read_cohort("label_studio", tmp_path, max_skipped=0.6)
    assert [item.reason for item in cohort.skipped] == [reason]
    assert len(cohort.notes) == 1


def test_a_label_studio_text_of_another_version_is_a_fault(tmp_path: Path) -> None:
    moved = exports.label_studio(tmp_path, count=lambda offset: exports.units(offset) + 3)
    with pytest.raises(DataError, match="text mismatch"):
        read_cohort("label_studio", moved)


def test_a_file_that_is_no_label_studio_export_says_what_to_export(tmp_path: Path) -> None:
    folders.write(tmp_path / "export.json", '{"text": "x"}')
    with pytest.raises(DataError, match="Export from Label Studio as 'JSON'"):
        read_cohort("label_studio", tmp_path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "pain", "label": [[0, 9, "problem"]]}, "offset outside text"),
        ({"text": "pain", "label": [[0, "problem"]]}, "malformed entity"),
        ({"text": "pain", "entities": [{"id": 1}]}, "malformed entity"),
        ({"text": "pain", "relations": [{"from_id": 1, "to_id": 2, "type": "x"}]}, "relation without entity"),
        ({"text": " ", "label": []}, "empty note"),
        ({"text": "pain", "label": 3}, "malformed spans"),
    ],
)
def test_a_bad_row_of_doccano_is_skipped(row: Any, reason: str, tmp_path: Path) -> None:
    folders.jsonl(tmp_path, {"text": "pain", "label": [[0, 4, "problem"]]}, row)
    cohort = read_cohort("doccano", tmp_path, max_skipped=0.6)
    assert [item.reason for item in cohort.skipped] == [reason]
    assert folders.words(cohort.notes[0]) == {"S1": "pain"}


def test_prodigy_reads_accepted_rows_and_counts_the_others(tmp_path: Path) -> None:
    cohort = read_cohort("prodigy", exports.prodigy(tmp_path))
    assert cohort.annotation.lines_left_out == {"reject row": 1, "ignore row": 1}


def test_structural_layers_of_a_cas_are_no_entities_and_others_can_be_named(tmp_path: Path) -> None:
    root = exports.cas_xmi(tmp_path, layer="pos:Span")
    assert one_note("cas_xmi", root).entities == ()
    layer = "de.tudarmstadt.ukp.dkpro.core.api.lexmorph.type.pos.Span"
    named = one_note("cas_xmi", root, select={"layer": layer})
    assert sorted(folders.words(named).values()) == ["No", "fever", "pain", "severe"]


def test_of_several_views_of_a_cas_the_initial_one_is_read(tmp_path: Path) -> None:
    further = (
        '<cas:Sofa xmi:id="60" sofaNum="2" sofaID="translation" sofaString="Schmerz."/>'
        '<custom:Span xmi:id="61" sofa="60" begin="0" end="7" label="problem"/>'
        '<cas:View sofa="60" members="61"/><cas:View sofa="9" members="1 2 3 4"/>'
    )
    cohort = read_cohort("cas_xmi", exports.cas_xmi(tmp_path, further=further))
    assert sorted(folders.words(cohort.notes[0]).values()) == ["No", "fever", "pain", "severe"]
    assert cohort.annotation.lines_left_out == {"further view": 1}


def test_a_cas_that_declares_entities_is_refused_unread(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    with pytest.raises(DataError, match="malformed file"):
        read_cohort("cas_xmi", exports.cas_xmi(tmp_path, head=bomb))


def test_a_span_outside_a_cas_text_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="offset outside text"):
        read_cohort("cas_xmi", exports.cas_xmi(tmp_path, text="short"))
