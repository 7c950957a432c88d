# SPDX-License-Identifier: Apache-2.0
"""Notes of the same words are in one split, and held-out notes that repeat training notes are named."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import note_folders as folders
import pytest

from command_line import answer
from medflare.data.grouped_split import group_names, split_by_group
from medflare.data.near_copies import COMMON, near_copies
from medflare.data.records import Note
from medflare.data.settings.cohort import SplitConfig

WORDS = [f"word{number}" for number in range(4000)]


def text(seed: int, count: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def notes(count: int, patients: int | None = None) -> list[Note]:
    who = (lambda number: "") if patients is None else (lambda number: f"p{number % patients}")
    return [
        Note(note_id=f"n{number}", text=text(number), patient_id=who(number), split="")
        for number in range(count)
    ]


def test_notes_of_the_same_words_are_in_one_split_and_others_stay_where_they_were() -> None:
    once = notes(200)
    before, _ = split_by_group(once, False, SplitConfig())
    twice = [*once, *(replace(n, note_id=f"z{n.note_id}", text=f"  {n.text.upper()}\n") for n in once[:60])]
    after, _ = split_by_group(twice, False, SplitConfig())
    assert [note.split for note in after[:200]] == [note.split for note in before]
    assert [note.split for note in after[200:]] == [note.split for note in before[:60]]
    assert group_names(once) == [note.note_id for note in once], "the hash is of the same name as ever"


def test_patients_who_share_a_note_are_in_one_split_whatever_the_order_of_rows() -> None:
    given = notes(40, patients=10)
    shared = [replace(given[3], note_id="copy", patient_id="p7"), *given]
    for rows in (shared, shared[::-1]):
        split = {}
        for note, name in zip(rows, group_names(rows), strict=True):
            split.setdefault(note.patient_id, set()).add(name)
        assert split["p7"] == split["p3"] == {"p3"}
        assert all(split[f"p{number}"] == {f"p{number}"} for number in range(10) if number != 7)


def test_a_source_s_own_splits_are_mended_where_they_share_a_note() -> None:
    given = [replace(note, split="train") for note in notes(4)]
    given.append(replace(given[0], note_id="again", split="test"))
    mended, moved = split_by_group(given, True, SplitConfig())
    assert moved == 1
    assert Counter(note.split for note in mended) == {"train": 3, "test": 2}


def test_a_note_that_stands_very_often_is_trained_on_and_one_patient_s_many_notes_are_not() -> None:
    form = [Note(note_id=f"f{number}", text="Did not attend.", split="") for number in range(60)]
    split, _ = split_by_group([*form, *notes(300)], False, SplitConfig())
    assert {note.split for note in split[:60]} == {"train"}
    few = notes(300, patients=3)
    split, _ = split_by_group(few, False, SplitConfig())
    assert {note.split for note in split} == {"train", "val", "test"}


def test_a_held_out_note_that_repeats_a_training_note_is_named_with_the_one_it_repeats_most() -> None:
    trained = [replace(note, split="train") for note in notes(30)]
    half = " ".join([*trained[4].text.split()[:100], *text(901, 100).split()])
    little = " ".join([*trained[5].text.split()[:40], *text(902, 160).split()])
    others = [
        replace(trained[0], note_id="half", text=half, split="test"),
        replace(trained[0], note_id="little", text=little, split="test"),
        replace(trained[0], note_id="short", text="No fever.", split="val"),
        replace(trained[0], note_id="new", text=text(903), split="val"),
    ]
    found = near_copies([*others, *trained])
    assert [(copy.held_out, copy.trained) for copy in found] == [("half", "n4")]
    assert found[0].share == pytest.approx(93 / 193)
    assert near_copies(trained) == near_copies(others) == []


def test_a_form_that_all_notes_share_is_no_copy() -> None:
    form = text(7, 100)
    every = [
        replace(note, text=f"{form} {text(1000 + number, 60)}", split="train" if number <= COMMON else "test")
        for number, note in enumerate(notes(COMMON + 5))
    ]
    assert near_copies(every) == []
    assert len(near_copies(every[10:])) == 4, "of fewer notes it is one"


def test_inspect_names_such_notes(tmp_path: Path) -> None:
    words = text(1)
    for split, more in (("train", ""), ("test", " And one more.")):
        folders.brat(tmp_path / split, text=f"{folders.TEXT}\n{words}{more}", name=f"{split}-1")
    shown = answer("cohort", "inspect", tmp_path, "--format", "brat")
    assert "1 of 1 held-out notes repeat 30% or more of a training note" in shown
    assert "train/train-1" in shown


def test_a_test_note_that_another_hospital_trains_on_is_named(tmp_path: Path) -> None:
    """In a study all hospitals lie on one disk, and the common model is tested at each."""
    for site, split, seed in (("north", "train", 1), ("south", "test", 1), ("south", "train", 2)):
        words = f"{folders.TEXT}\n{text(seed)} It is of {site}."
        folders.brat(tmp_path / site / split, text=words, name=split)
    sites = {name: {"cohort": {"format": "brat", "root": name}} for name in ("north", "south")}
    (tmp_path / "site.yaml").write_text(json.dumps({"sites": sites}))
    shown = answer("cohort", "inspect", tmp_path / "site.yaml")
    assert "1 of 1 held-out notes repeat 30% or more of a training note" in shown
    assert "south: test/test" in shown
    assert "north: train/train" in shown
