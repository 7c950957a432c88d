# SPDX-License-Identifier: Apache-2.0
"""CoNLL: five tag schemes mean the same mentions, and offsets are those of the text put together again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import note_folders as folders
import pytest

from medflare.core.errors import DataError
from site_builders import read_cohort

TOKENS = ("No", "chest", "pain", "fever", "today", ".")
SCHEMES = {
    "IOB2": "O B-problem I-problem B-problem B-temporal O",
    "IOB1": "O I-problem I-problem B-problem I-temporal O",
    "BIOES": "O B-problem E-problem S-problem S-temporal O",
    "BILOU": "O B-problem L-problem U-problem U-temporal O",
}


def rows(tags: str, tokens: tuple[str, ...] = TOKENS, middle: str = " NN ") -> str:
    return "".join(f"{token}{middle}{tag}\n" for token, tag in zip(tokens, tags.split(), strict=True))


def load(root: Path, **settings: Any) -> Any:
    return read_cohort("conll", root, **settings).notes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_means_the_same_mentions(scheme: str, tmp_path: Path) -> None:
    folders.write(tmp_path / "train.conll", rows(SCHEMES[scheme]))
    note = load(tmp_path, annotated=("problem", "temporal"))[0]
    assert folders.words(note) == {"T1": "chest pain", "T2": "fever"}
    assert (note.tasks, note.split, note.annotated) == (("ner",), "train", ("problem", "temporal"))


def test_a_mention_never_crosses_a_sentence(tmp_path: Path) -> None:
    folders.write(tmp_path / "a.conll", "pain I-problem\n\n\nfever I-problem\n")
    note = load(tmp_path)[0]
    assert (note.text, folders.words(note)) == ("pain\nfever", {"T1": "pain", "T2": "fever"})


def test_documents_begin_at_docstart(tmp_path: Path) -> None:
    one, two = rows("O B-problem I-problem O O O"), rows("O O O B-problem O O")
    folders.write(tmp_path / "a.conll", f"-DOCSTART- -X- O\n\n{one}\n-DOCSTART- -X- O\n\n{two}\n{two}")
    first, second = load(tmp_path)
    assert (first.note_id, second.note_id) == ("a.conll#1", "a.conll#2")
    assert second.text == "No chest pain fever today .\nNo chest pain fever today ."
    assert [entity.spans[0] for entity in second.entities] == [(14, 19), (42, 47)]


def test_columns_are_numbers_from_either_end(tmp_path: Path) -> None:
    text = "".join(f"{i}\t{t}\tB-problem\t_\n" for i, t in enumerate(("pain", "fever")))
    folders.write(tmp_path / "a.tsv", text)
    note = load(tmp_path, columns={"token": 2, "tag": -2})[0]
    assert folders.words(note) == {"T1": "pain", "T2": "fever"}
    for columns, said in (({"tag": 0}, "counted from 1"), ({"word": 1}, "no field of conll")):
        with pytest.raises(DataError, match=said):
            load(tmp_path, columns=columns)


def test_files_and_folders_name_the_split(tmp_path: Path) -> None:
    for name in ("dev.conll", "test/a.conll", "train.tsv"):
        folders.write(tmp_path / name, rows(SCHEMES["IOB2"]) + f"\n{name} NN O\n")
    assert {note.note_id: note.split for note in load(tmp_path)} == {
        "dev.conll": "val",
        "test/a.conll": "test",
        "train.tsv": "train",
    }
    assert [note.note_id for note in load(tmp_path, file="dev.conll")] == ["dev.conll"]


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("pain\n", "malformed line", "b.conll line 1"),
        ("No O\npain problem\n", "unknown tag", "b.conll line 2"),
        ("No O\npain X-problem\n", "unknown tag", "tag 'X-problem'"),
        ("\n\n", "empty note", "b.conll, offset 0"),
        ("No O\npain B-Grade\n", "unknown type", "T1 at 3:7"),
    ],
)
def test_a_bad_file_is_skipped_with_its_line(text: str, reason: str, place: str, tmp_path: Path) -> None:
    folders.write(tmp_path / "a.conll", rows(SCHEMES["IOB2"]))
    folders.write(tmp_path / "b.conll", text)
    cohort = read_cohort("conll", tmp_path, max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == [reason]
    assert place in cohort.skipped[0].detail
    assert [note.note_id for note in cohort.notes] == ["a.conll"]
