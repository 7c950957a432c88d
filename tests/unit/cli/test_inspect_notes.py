# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort inspect` on annotated notes: counts before and after mapping, losses, skipped notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import answer, facts, refusal

TEXT = "Severe pain in the wrist.\nNo fever."
ANN = (
    "T1\tproblem 7 11\tpain\nT2\tGrade 0 6\tSevere\nT3\tbodyloc 19 24\twrist\nT4\tproblem 29 34\tfever\n"
    "R1\thasAttr Arg1:T1 Arg2:T2\nR2\thasAttr Arg1:T1 Arg2:T3\nR3\thasAttr Arg1:T4 Arg2:T3\nA1\tNegation T4\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(19):
        (tmp_path / f"n{number}.txt").write_text(TEXT)
        (tmp_path / f"n{number}.ann").write_text(ANN.replace("Grade", "severity"))
    return tmp_path


def test_documents_entities_relations_losses_and_skips_are_counted(folder: Path) -> None:
    (folder / "bad.txt").write_text(TEXT)
    (folder / "bad.ann").write_text("T1\tproblem 7 11\tfever\n")
    summary = facts("cohort", "inspect", folder, "--format", "brat", "--label-map", "mtsamples")
    assert (summary["notes"], summary["records"]) == (19, 20)
    assert summary["entities"] == {"problem": 38, "severity": 19, "bodyloc": 19}
    assert summary["relations"] == {"hasAttr": 57}
    assert summary["annotation"]["modifiers"] == {"problem > bodyloc": 38, "problem > severity": 19}
    assert summary["annotation"]["windows"] == {
        "sentences_per_window": 1,
        "windows": 38,
        "entities_cut": 0,
        "relations_lost": 19,
        "relations_total": 57,
    }
    assert summary["annotation"]["source"]["lines_left_out"] == {"attribute": 19}
    assert summary["skipped"]["text mismatch"]["count"] == 1
    assert "bad.ann line 1: T1 at 7:11" in summary["skipped"]["text mismatch"]["examples"][0]


def test_notes_that_all_train_are_said_to_test_nothing(folder: Path) -> None:
    (folder / "train").mkdir()
    for path in [*folder.glob("n*.txt"), *folder.glob("n*.ann")]:
        path.rename(folder / "train" / path.name)
        if path.suffix == ".txt":
            (folder / "train" / path.name).write_text(f"{TEXT}\nNote {path.stem}.")
    shown = " ".join(answer("cohort", "inspect", folder, "--format", "brat").split())
    assert "No record is in split val or test: nothing here validates after its rounds or tests at" in shown
    (folder / "site.yaml").write_text(
        "name: a\ncohort: {format: brat, root: ., split: {ignore_source: true}}\n"
    )
    assert "No record" not in answer("cohort", "inspect", folder)
    splits = facts("cohort", "inspect", folder)["splits"]
    assert all(splits[split]["notes"] for split in ("train", "val", "test"))


def test_people_see_both_sides_of_a_map(folder: Path) -> None:
    plain = answer("cohort", "inspect", folder, "--format", "brat")
    assert "19 of 57 relations lost" in plain
    assert "in the source" not in plain
    (folder / "site.yaml").write_text(
        "name: a\ncohort: {format: brat, root: ., label_map: {severity: null}, tasks: [ner]}\n"
    )
    mapped = answer("cohort", "inspect", folder)
    assert "entities in the source" in mapped
    assert "entities dropped" in mapped
    assert "ner 19" in mapped


def test_a_label_map_needs_a_format_and_must_exist(folder: Path) -> None:
    (folder / "site.yaml").write_text("name: a\ncohort: {format: brat, root: .}\n")
    for given, said in (
        (["--label-map", "chia"], "goes with --format"),
        (["--format", "brat", "--label-map", "snomed"], "no such label map; there are: chia"),
    ):
        assert said in refusal(2, "cohort", "inspect", folder, *given)
