# SPDX-License-Identifier: Apache-2.0
"""What is written is read back the same: BRAT and JSON lines, whatever the note's file looks like."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.core.errors import DataError
from medflare.core.origin import Origin
from medflare.data.load import load_cohort
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.extraction_predictions import EntityMention, Link
from medflare.tasks.extraction.annotation_files import (
    annotated,
    files_of,
    read_note,
    write_brat,
    write_cas,
    write_lines,
)
from medflare.tasks.extraction.predictor import NotePrediction
from medflare.tasks.fhir import note_resources, resource_id
from medflare.tasks.output_files import distinct_names, refuse_to_replace

CRLF = "Severe pain in the left\r\nwrist .\r\nNo fever .\r\n"
PAIN, SEVERE = EntityMention("problem", ((7, 11),)), EntityMention("severity", ((0, 6),))
WRIST = EntityMention("bodyloc", ((19, 30),))
FEVER, NO = EntityMention("problem", ((37, 42),)), EntityMention("negation", ((34, 36),))


def answers(*entities: EntityMention, links: tuple[Link, ...] = ()) -> NotePrediction:
    prediction = NotePrediction()
    prediction.entities, prediction.links_end_to_end = list(entities), list(links)
    return prediction


def example(text: str = CRLF) -> Note:
    links = (Link(PAIN, WRIST), Link(FEVER, NO), Link(PAIN, SEVERE))
    return annotated(Note(note_id="n1", text=text, split=""), answers(FEVER, PAIN, links=links))


def read_back(format: str, root: Path) -> list[Note]:
    return load_cohort(SiteConfig(cohort=(CohortConfig(format=format, root=root),))).notes


def facts(note: Note) -> tuple[Any, ...]:
    links = {(r.label, r.head, r.tail) for r in note.relations}
    return note.text, sorted((e.entity_id, e.label, e.spans) for e in note.entities), links


def source(folder: Path, text: str, name: str = "n1.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode("utf-8"))
    return folder / name


def test_annotation_is_in_the_order_of_the_text_each_thing_once() -> None:
    shared = Link(FEVER, SEVERE)
    note = annotated(
        Note(note_id="n", text=CRLF), answers(FEVER, PAIN, PAIN, links=(shared, Link(PAIN, SEVERE), shared))
    )
    assert [(e.entity_id, e.label) for e in note.entities] == [
        ("T1", "severity"),
        ("T2", "problem"),
        ("T3", "problem"),
    ]
    assert [(r.label, r.head, r.tail) for r in note.relations] == [
        ("hasAttr", "T2", "T1"),
        ("hasAttr", "T3", "T1"),
    ]


def test_brat_lines_are_what_brat_expects(tmp_path: Path) -> None:
    written = write_brat(tmp_path / "out", example(), source(tmp_path, CRLF))
    assert written[0].read_bytes() == CRLF.encode()
    assert written[1].read_bytes().decode().split("\n") == [
        "T1\tseverity 0 6\tSevere",
        "T2\tproblem 7 11\tpain",
        "T3\tbodyloc 19 30\tleft  wrist",
        "T4\tnegation 34 36\tNo",
        "T5\tproblem 37 42\tfever",
        "R1\thasAttr Arg1:T2 Arg2:T1",
        "R2\thasAttr Arg1:T2 Arg2:T3",
        "R3\thasAttr Arg1:T5 Arg2:T4",
        "",
    ]


@pytest.mark.parametrize("format", ["brat", "notes_jsonl"])
def test_crlf_survives_the_way_there_and_back(format: str, tmp_path: Path) -> None:
    note, out = example(), tmp_path / "out"
    if format == "brat":
        write_brat(out, note, source(tmp_path / "in", CRLF))
    else:
        write_lines(out, [note])
    assert [facts(found) for found in read_back(format, out)] == [facts(note)]


def test_offsets_count_a_byte_order_mark_as_the_file_does(tmp_path: Path) -> None:
    path = source(tmp_path / "in", "\ufeffpain today")
    result = annotated(read_note(path, "n1"), answers(EntityMention("problem", ((1, 5),))))
    write_brat(tmp_path / "out", result, path)
    assert (tmp_path / "out" / "n1.ann").read_text() == "T1\tproblem 1 5\tpain\n"
    read = read_back("brat", tmp_path / "out")[0]
    assert [read.text[s:e] for entity in read.entities for s, e in entity.spans] == ["pain"]


@st.composite
def marked(draw: st.DrawFn) -> Note:
    alphabet = st.sampled_from("ab é漢😀.,\t\n\r\x0b\x0c\x85\u2028-")
    text = "x" + draw(st.text(alphabet, max_size=60)) + "x"
    places = st.integers(0, len(text) - 1)
    spans = draw(st.lists(st.tuples(places, places), max_size=6))
    mentions = [
        EntityMention(label, ((min(pair), max(pair) + 1),))
        for label, pair in zip(["problem", "drug", "test"] * 2, spans, strict=False)
        if text[min(pair) : max(pair) + 1].strip()
    ]
    tail = EntityMention("negation", ((0, 1),))
    links = tuple(Link(mention, tail) for mention in mentions[::2])
    return annotated(Note(note_id="n1", text=text, split=""), answers(*mentions, links=links))


@given(marked())
def test_any_text_comes_back_with_its_entities_and_links(note: Note) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_brat(folder / "brat", note, source(folder / "in", note.text))
        write_lines(folder / "lines", [note])
        for format, place in (("brat", "brat"), ("notes_jsonl", "lines")):
            assert [facts(found) for found in read_back(format, folder / place)] == [facts(note)]


def by_place(note: Note) -> tuple[Any, ...]:
    """Text, entities and links without ids, which a CAS numbers anew."""
    place = {e.entity_id: (e.label, e.spans) for e in note.entities}
    links = sorted((r.label, place[r.head], place[r.tail]) for r in note.relations)
    return note.text, sorted(place.values()), links


@given(marked())
def test_any_text_comes_back_from_a_cas_but_for_what_xml_cannot_hold(note: Note) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        write_cas(Path(name), note)
        (found,) = read_back("cas_xmi", Path(name))
    plain = replace(note, text=note.text.replace("\x0b", " ").replace("\x0c", " "))
    assert by_place(found) == by_place(plain)


def test_a_discontinuous_entity_keeps_its_fragments(tmp_path: Path) -> None:
    entity = Entity(entity_id="T1", label="problem", spans=((0, 6), (15, 18)))
    note = Note(note_id="n1", text=CRLF, split="", entities=(entity,), relations=())
    write_brat(tmp_path / "out", note, source(tmp_path, CRLF))
    assert (tmp_path / "out" / "n1.ann").read_text() == "T1\tproblem 0 6;15 18\tSevere the\n"


def test_a_note_s_own_file_is_not_touched(tmp_path: Path) -> None:
    path = source(tmp_path, CRLF)
    before = path.stat().st_mtime_ns
    write_brat(tmp_path, example(), path)
    assert path.stat().st_mtime_ns == before
    assert facts(read_back("brat", tmp_path)[0]) == facts(example())


@pytest.mark.parametrize(
    ("content", "reason", "where"),
    [
        (b"", "empty note", "offset 0"),
        (b"\xef\xbb\xbf \r\n", "empty note", "offset 0"),
        (b"pain \xff", "not UTF-8", "byte 5"),
        (b"p\0a\0i\0n\0", "not a text", "offset 1"),
        (None, "unreadable file", "No such file"),
    ],
)
def test_a_file_that_is_no_note_says_so(
    content: bytes | None, reason: str, where: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "n.txt").write_bytes(content)
    with pytest.raises(RecordError, match=where) as caught:
        read_note(tmp_path / "n.txt", "n")
    assert caught.value.reason == reason


def test_files_of_one_name_keep_apart(tmp_path: Path) -> None:
    assert list(distinct_names([Path("a/n1.txt"), Path("b/n2.txt"), Path("a/n1.txt")]).values()) == [
        "n1",
        "n2",
    ]
    assert list(distinct_names([Path("a/n1.txt"), Path("b/n1.txt")]).values()) == ["a/n1", "b/n1"]
    assert list(distinct_names([Path("a/n1.txt"), Path("a/n1.md")]).values()) == ["n1.txt", "n1.md"]
    uids = [Path("p1/1.2.840.4"), Path("p1/1.2.840.5"), Path("p2/1.2.840.6"), Path("p2/scan.nii.gz")]
    assert list(distinct_names(uids).values()) == ["1.2.840.4", "1.2.840.5", "1.2.840.6", "scan"]
    assert list(distinct_names([Path("1.2.840.4")]).values()) == ["1.2.840.4"]
    out = tmp_path / "out"
    for folder in ("a", "b"):
        write_brat(out, Note(note_id=f"{folder}/n1", text=folder), source(tmp_path / folder, folder))
    assert sorted(note.note_id for note in read_back("brat", out)) == ["a/n1", "b/n1"]


def test_somebody_s_annotation_is_not_overwritten(tmp_path: Path) -> None:
    def check(names: list[str], format: str) -> None:
        refuse_to_replace(tmp_path, files_of(names, format), "somebody's own annotation")

    (tmp_path / "n1.ann").write_text("")
    check(["n1"], "brat")
    (tmp_path / "n1.ann").write_text("T1\tproblem 0 1\tx\n")
    with pytest.raises(DataError, match=r"has n1\.ann already, perhaps somebody's own.*--overwrite"):
        check(["n1", "n2"], "brat")
    check(["n1"], "jsonl")
    (tmp_path / "notes.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"notes\.jsonl already"):
        check(["n1"], "jsonl")


def test_lines_hold_the_text_and_no_made_up_split(tmp_path: Path) -> None:
    row = json.loads(write_lines(tmp_path, [example()])[0].read_text(encoding="utf-8"))
    assert row["text"] == CRLF
    assert "split" not in row
    assert Relation(label="hasAttr", head="T2", tail="T1") in example().relations


def test_notes_of_names_that_fhir_does_not_allow_stay_two_resources() -> None:
    """One id for both would hang the findings of one patient on the note of another."""
    names = ["n1", "ward/n1", "ward-n1", "Möller 1", "Müller 1", f"a{'x' * 70}", f"b{'x' * 70}", "-", "", "é"]
    origin = Origin(adapter="0" * 16)
    resources = [item for name in names for item in note_resources(replace(example(), note_id=name), origin)]
    ids = [(item["resourceType"], item["id"]) for item in resources]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9.-]{1,64}", identity) for _, identity in ids)
    documents = {f"DocumentReference/{identity}" for kind, identity in ids if kind == "DocumentReference"}
    assert {item["derivedFrom"][0]["reference"] for item in resources if "derivedFrom" in item} == documents
    assert resource_id("n1") == "n1"
