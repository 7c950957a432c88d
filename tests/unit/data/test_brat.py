# SPDX-License-Identifier: Apache-2.0
"""BRAT standoff: what is read, what is left out and counted, and all of the public MTSamples annotation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import note_folders as folders
import pytest

from medflare.core.errors import DataError
from site_builders import read_cohort


def test_entities_relations_and_fragments_are_read(tmp_path: Path) -> None:
    note = read_cohort("brat", folders.brat(tmp_path)).notes[0]
    assert (note.note_id, note.text) == ("n1", folders.TEXT)
    assert folders.words(note)["T3"] == "left ankle"
    assert note.entities[2].spans == ((19, 23), (34, 39))
    assert folders.links(note) == {("T1", "T2"), ("T1", "T3"), ("T4", "T5")}


@pytest.mark.parametrize("arguments", ["Arg1:T1 Arg2:T2", "Head:T1 Modifier:T2", "problem:T1 sev:T2"])
def test_arguments_may_have_any_name(arguments: str, tmp_path: Path) -> None:
    ann = f"T1\tproblem 7 11\tpain\nT2\tseverity 0 6\tSevere\nR1\thasAttr {arguments}\t\n"
    note = read_cohort("brat", folders.brat(tmp_path, ann=ann)).notes[0]
    assert folders.links(note) == {("T1", "T2")}


def test_other_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    more = (
        "A1\tNegation T4\nM1\tSpeculation T1\nE1\tproblem:T1 Place:T3\nN1\tReference T1 UMLS:C1\tpain\n"
        "#1\tAnnotatorNotes T1\tsee below\n*\tEquiv T1 T4\n\n"
    )
    cohort = read_cohort("brat", folders.brat(tmp_path, ann=folders.ANN + more))
    assert (cohort.skipped, len(cohort.notes[0].entities)) == ([], 5)
    assert dict(cohort.annotation.lines_left_out) == {
        "attribute": 2,
        "event": 1,
        "normalisation": 1,
        "remark": 1,
        "group": 1,
    }


def test_a_relation_of_an_event_means_its_trigger(tmp_path: Path) -> None:
    ann = "T1\tproblem 7 11\tpain\nT2\tseverity 0 6\tSevere\nE1\tproblem:T1\nR1\thasAttr Arg1:E1 Arg2:T2\n"
    assert folders.links(read_cohort("brat", folders.brat(tmp_path, ann=ann)).notes[0]) == {("T1", "T2")}


def test_crlf_counts_as_two_code_points(tmp_path: Path) -> None:
    text = folders.TEXT.replace("\n", "\r\n")
    ann = folders.ANN.replace("45 50", "46 51").replace("42 44", "43 45").replace("\n", "\r\n")
    note = read_cohort("brat", folders.brat(tmp_path, text, ann)).notes[0]
    assert note.text == text
    assert folders.words(note)["T4"] == "fever"


def test_line_ends_that_changed_after_annotation_are_changed_back(tmp_path: Path) -> None:
    text = folders.TEXT.replace("\n", "\r\n")
    for mark in ("", "\ufeff"):
        note = read_cohort("brat", folders.brat(tmp_path / f"unix{len(mark)}", mark + text)).notes[0]
        assert (note.text, folders.words(note)["T4"]) == (folders.TEXT, "fever")
    with pytest.raises(DataError, match="text mismatch 1"):
        read_cohort("brat", folders.brat(tmp_path / "other", f"{text[:9]} {text[9:]}"), max_skipped=1)


@pytest.mark.parametrize("shift", [0, 1], ids=["offsets without the mark", "offsets with the mark"])
def test_a_byte_order_mark_may_count_or_not(shift: int, tmp_path: Path) -> None:
    ann = f"\ufeffT1\tproblem {7 + shift} {11 + shift}\tpain\n"
    note = read_cohort("brat", folders.brat(tmp_path, "\ufeff" + folders.TEXT, ann)).notes[0]
    assert folders.words(note) == {"T1": "pain"}


def test_line_ends_inside_a_span_may_be_written_as_spaces_or_kept(tmp_path: Path) -> None:
    for written in ("ankle . No", "ankle .\nNo", "ankle .  No"):
        ann = f"T1\tproblem 34 44\t{written}\nT2\tproblem 45 50\tfever\n"
        note = read_cohort("brat", folders.brat(tmp_path, ann=ann)).notes[0]
        assert folders.words(note) == {"T1": "ankle .\nNo", "T2": "fever"}


def test_code_points_beyond_the_basic_plane_count_once(tmp_path: Path) -> None:
    ann = "T1\tproblem 4 9\tfever\n"
    note = read_cohort("brat", folders.brat(tmp_path, "𝛽 é fever", ann)).notes[0]
    assert folders.words(note) == {"T1": "fever"}


def test_folders_name_the_split_else_it_is_made(tmp_path: Path) -> None:
    for place in ("train", "validation", "test"):
        folders.brat(tmp_path / "given" / place, name=f"{place}-1", text=f"{folders.TEXT}\nOf {place}.")
    given = read_cohort("brat", tmp_path / "given")
    assert {note.note_id: note.split for note in given.notes} == {
        "train/train-1": "train",
        "validation/validation-1": "val",
        "test/test-1": "test",
    }
    for number in range(20):
        folders.brat(tmp_path / "none", name=f"n{number}", text=f"{folders.TEXT}\nNote {number}.")
    made = Counter(note.split for note in read_cohort("brat", tmp_path / "none").notes)
    assert set(made) == {"train", "val", "test"}


def test_a_note_beside_divided_ones_moves_none_of_them(tmp_path: Path) -> None:
    """One stray note must not have the notes of test/ trained on."""
    for number in range(30):
        place = "test" if number % 3 else "train"
        folders.brat(tmp_path / place, text=f"{folders.TEXT}\nNote {number}.", name=f"n{number}")
    folders.brat(tmp_path, text=f"{folders.TEXT}\nStray.", name="stray")
    cohort = read_cohort("brat", tmp_path)
    assert cohort.skipped == []
    assert Counter(note.split for note in cohort.notes if note.note_id != "stray") == {
        "train": 10,
        "test": 20,
    }
    only_tests = read_cohort("brat", tmp_path, split={"train": 0, "val": 0, "test": 1})
    assert Counter(note.split for note in only_tests.notes) == {"train": 10, "test": 21}
    divided = read_cohort("brat", tmp_path, split={"ignore_source": True})
    assert len(divided.notes) == 31
    assert {note.split for note in divided.notes} == {"train", "val", "test"}


def test_files_that_begin_with_a_dot_are_no_notes(tmp_path: Path) -> None:
    folders.write(folders.brat(tmp_path) / "._n1.txt", "\x00\x05")
    cohort = read_cohort("brat", tmp_path)
    assert (len(cohort.notes), cohort.records) == (1, 1)


def test_texts_alone_are_input_of_an_extraction(tmp_path: Path) -> None:
    folders.brat(tmp_path, ann=None)
    note = read_cohort("brat", tmp_path, tasks=()).notes[0]
    assert (note.text, note.entities, note.tasks) == (folders.TEXT, (), ())


def test_all_of_mtsamples_is_read(public_data: Path) -> None:
    """By a count of lines: no entity and no relation is lost; every span reads as its line says."""
    folder = public_data / "ie" / "mtsamples_brat"
    types: Counter[str] = Counter()
    linked: Counter[str] = Counter()
    reads: dict[tuple[str, str], str] = {}
    for path in folder.rglob("*.ann"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition("\t")
            if name[0] == "T":
                types[rest.split()[0]] += 1
                reads[f"train/{path.stem}", name] = rest.partition("\t")[2]
            elif name[0] == "R":
                linked[rest.split()[0]] += 1
    cohort = read_cohort("brat", folder, label_map="mtsamples")
    assert (len(cohort.notes), cohort.skipped) == (96, [])
    assert Counter(e.label for note in cohort.notes for e in note.entities) == types
    assert Counter(r.label for note in cohort.notes for r in note.relations) == linked
    assert (types.total(), linked.total()) == (10838, 4742)
    wrong = [
        (note.note_id, name)
        for note in cohort.notes
        for name, found in folders.words(note).items()
        if found != reads[note.note_id, name]
    ]
    assert wrong == [("train/50_20210610044419_Hayden", "T120")]  # its line breaks off at a line end
    assert all(note.tasks == ("ner", "re") for note in cohort.notes)
