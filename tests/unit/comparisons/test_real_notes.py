# SPDX-License-Identifier: Apache-2.0
"""The comparison on real notes: scores by note without texts, and what decides a result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from medflare.core.errors import DataError
from medflare.core.json_lines import write_lines
from medflare.core.run_record import read_record
from medflare.data.records import Entity, Note
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.extraction_metrics import quick_extraction_metrics
from medflare.evaluation.extraction_predictions import ScoredDocument
from medflare.models.embedded import decoder_folder
from medflare.recipes.after_run import score_site
from method_comparison.comparison_table import comparison_table
from method_comparison.configuration import Selection
from method_comparison.progress import UnitProgress
from method_comparison.runner import Comparison
from method_comparison.tasks import real_notes
from method_comparison.tasks.base import Unit
from method_comparison.tasks.extraction_scores import PREDICTIONS, SCORES, own_score, score
from method_comparison.tasks.needed import NotHereError
from method_comparison.tasks.note_counts import (
    counts_file,
    joined,
    read_counts,
    write_counts,
    write_documents,
)
from method_comparison.tasks.real_notes import (
    ENTITIES,
    FEW,
    METRICS,
    SITES,
    NoteExtraction,
    NotesMethod,
    RealNotes,
    train_sites,
    write_notes,
)

FEVER = {"label": "problem", "spans": [[3, 8]]}
COUGH = {"label": "problem", "spans": [[10, 15]]}


def document(name: str, gold: list[object], predicted: list[object], unreadable: int = 0) -> ScoredDocument:
    return ScoredDocument.model_validate(
        {
            "kind": "extraction", "schema_version": 1, "note_id": name, "patient_id": name, "site": "test",
            "adapter": "generic", "tasks": ["ner"], "gold_entities": gold, "predicted_entities": predicted,
            "outputs": 2, "faults": {"parse_failure": unreadable} if unreadable else {},
            "text": "No fever, cough.",
        }
    )  # fmt: skip


def test_counts_give_the_scores_of_the_notes_and_hold_neither_texts_nor_names(tmp_path: Path) -> None:
    documents = [
        document("anna", [FEVER, COUGH], [FEVER]),
        document("berta", [FEVER], [FEVER, COUGH], unreadable=1),
    ]
    file = counts_file(tmp_path / "test.jsonl")
    write_counts(file, documents, tuple(METRICS))
    run = read_counts(file)
    found = quick_extraction_metrics(documents)
    assert {name: score.value for name, score in run.scores.items()} == {
        name: pytest.approx(found[name]) for name in METRICS if name in found
    }
    assert len(run.scores["ner_strict_f1"]) == 2
    text = file.read_text(encoding="utf-8")
    assert "anna" not in text
    assert "fever" not in text


def test_counts_give_the_table_that_the_predictions_give(tmp_path: Path) -> None:
    documents = [document("anna", [FEVER, COUGH], [FEVER]), document("berta", [FEVER], [FEVER, COUGH])]
    write_lines(tmp_path / "test.jsonl", documents)
    task, settings = NoteExtraction(), RealNotes()
    tables = [task.places(settings, FEW, tmp_path)]
    write_counts(counts_file(tmp_path / "test.jsonl"), documents, tuple(METRICS))
    tables.append(task.places(settings, FEW, tmp_path))
    rows = [comparison_table({"m": [t["test notes"]]}, {"m": "m"}, task.case_columns, {}) for t in tables]
    assert [list(table) for table in tables] == [["test notes"]] * 2, "the new site was not tested"
    assert rows[0] == rows[1]


def test_sites_of_which_counts_alone_are_kept_have_the_scores_of_their_predictions(tmp_path: Path) -> None:
    """Of a model for all, and of each site's own, whose tests lie in a folder for each model."""
    texts = {
        "site-1": [document("anna", [FEVER, COUGH], [FEVER]), document("anna", [COUGH], [COUGH, FEVER])],
        "site-2": [document("anna", [FEVER], [], unreadable=1)],  # another patient of the same name
    }
    for place in ("shared", "single/site-1", "single/site-2"):
        for site, documents in texts.items():
            (tmp_path / place / site).mkdir(parents=True)
            items = [item.model_copy(update={"site": site}) for item in documents]
            write_documents(tmp_path / place / site / PREDICTIONS, items, tuple(SCORES))
    kept = sorted(tmp_path.rglob("*_counts.json"))
    assert len(kept) == 6

    def tables() -> list[tuple[dict[str, list[list[float]]], set[int]]]:
        found = [
            score(tmp_path / "shared", sorted(texts), tuple(SCORES)),
            score(tmp_path / "single", sorted(texts), tuple(SCORES)),
            own_score(tmp_path / "single", sorted(texts), tuple(SCORES)),
        ]
        return [
            (
                {name: one.sums.tolist() for name, one in run.scores.items()},
                {len(set(run.groups_of(name))) for name in run.scores},
            )
            for run in found
            if run is not None
        ]

    from_counts = tables()
    assert from_counts[0][0]["ner_strict_f1"] == [[1, 0, 1], [1, 1, 0], [0, 0, 1]]
    assert from_counts[0][1] == {2}
    for file in kept:
        file.unlink()
    assert tables() == from_counts, "of the predictions"
    assert len(from_counts) == 3


def test_a_metric_that_one_file_lacks_is_of_the_others(tmp_path: Path) -> None:
    write_counts(tmp_path / "a", [document("anna", [FEVER], [FEVER])], ("ner_strict_f1", "ner_lenient_f1"))
    write_counts(tmp_path / "b", [document("berta", [COUGH], [])], ("ner_strict_f1",))
    run = joined([read_counts(tmp_path / name) for name in "ab"])
    assert {name: len(one) for name, one in run.scores.items()} == {"ner_strict_f1": 2, "ner_lenient_f1": 1}
    assert [len(set(run.groups_of(name))) for name in run.scores] == [2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"ner_strict_f1": {"ratio": "f1", "patients": [0], "counts": [[1, -1, 0]]}}',
        '{"ner_strict_f1": {"ratio": "f1", "patients": [0, 1], "counts": [[1, 1, 0]]}}',
    ],
)
def test_a_damaged_file_of_counts_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_counts.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"test_counts\.json: is no file of counts by note"):
        read_counts(tmp_path / "test_counts.json")


def test_where_the_encoder_lies_is_no_part_of_a_result(tmp_path: Path) -> None:
    here, there = (
        Comparison.read("few_real_notes", Selection(settings={"encoder": str(folder)}))
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert here.fingerprint("encoder") == there.fingerprint("encoder")
    other = replace(here, settings=here.settings.model_copy(update={"rounds": 9}))
    assert here.fingerprint("encoder") != other.fingerprint("encoder")


def test_validation_notes_train_nobody_and_are_none_of_the_test_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that is chosen on them can then be tested on notes that had no say in it."""
    notes = [Note(note_id=f"n{number:02}", text=f"Note {number}.") for number in range(40)]
    monkeypatch.setattr(real_notes, "mtsamples", lambda: notes)
    task, seen = NoteExtraction(), {}
    for count in (0, 6):
        settings = RealNotes(train=40, test=8, new_site=0, validation=count)
        task.prepare(settings, ENTITIES, 1, tmp_path / str(count))
        seen[count] = {
            name: {json.loads(line)["doc_id"] for line in file.read_text().splitlines()}
            for name in (*SITES, "weighing", "test")
            for file in [tmp_path / str(count) / f"{ENTITIES}-1" / name / "notes.jsonl"]
        }
    training = {count: set().union(*(found[site] for site in SITES)) for count, found in seen.items()}
    assert len(seen[6]["test"]) == 6
    assert seen[6]["test"] <= training[0], "of those that train otherwise"
    assert training[6] == training[0] - seen[6]["test"]
    assert seen[6]["weighing"] == seen[0]["weighing"]


def test_a_row_of_an_encoder_is_left_out_without_its_weights(tmp_path: Path) -> None:
    """Without a folder the learner would begin from random words, under the name of MiniLM."""
    comparison = Comparison.read("few_real_notes", Selection())
    unit = Unit(
        method="encoder",
        partition=FEW,
        seed=0,
        settings=comparison.settings,
        own=comparison.own["encoder"],
        shared=tmp_path,
        folder=tmp_path,
        progress=UnitProgress(tmp_path / "unit", ""),
    )
    with pytest.raises(NotHereError, match="--set encoder=FOLDER"):
        NoteExtraction().train(unit)


def with_fever(number: int) -> Note:
    fever = Entity(entity_id="T1", label="problem", spans=((11, 16),))
    return Note(note_id=f"n{number:02}", text=f"Patient {number:02} fever and cough.", entities=(fever,))


@pytest.mark.parametrize("pooled", [False, True])
def test_what_a_unit_trained_is_a_run_that_can_be_tested_on_other_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    notes = [with_fever(number) for number in range(15)]
    monkeypatch.setattr(real_notes, "mtsamples", lambda: notes)
    monkeypatch.setattr(real_notes, "added_model", lambda name: decoder_folder("notes_decoder"))
    settings = RealNotes(train=6, test=1, new_site=0, weighing=1, rounds=1)
    own = NotesMethod(pooled=pooled, exchanges=2, rule="fedavgm")
    task, folder = NoteExtraction(), tmp_path / "unit"
    folder.mkdir()
    task.prepare(settings, ENTITIES, 3, tmp_path / "shared")
    unit = Unit(
        method="row",
        partition=ENTITIES,
        seed=3,
        settings=settings,
        own=own,
        shared=tmp_path / "shared",
        folder=folder,
        progress=UnitProgress(folder, ""),
    )
    tester, _, _ = train_sites(unit)

    record = read_record(folder / "run.json")
    assert sorted(record.sites) == (["pooled"] if pooled else sorted(SITES))
    assert sum(site.examples["train"] for site in record.sites.values()) > 0
    write_notes(tmp_path / "other", [with_fever(40)], "test")
    other = SiteConfig.model_validate(
        {
            "name": "other",
            "cohort": {"format": "notes_jsonl", "root": tmp_path / "other", "tasks": ("ner",)},
            "backbone": {"folder": decoder_folder("notes_decoder")},
        }
    )
    tested = score_site(folder / "run.json", other)
    assert tested.metrics["ner_strict_f1"].value >= 0
    assert [item.site for item in read_record(folder / "run.json").evaluations] == ["other"]
    written = load_file(folder / "result" / "adapter" / "adapter_model.safetensors")
    final = {n.removeprefix("adapter."): v for n, v in tester.initial_shared().items()}
    assert written.keys() == final.keys()
    assert all(torch.equal(written[name], final[name]) for name in final)
    assert all(bool(value.any()) for name, value in written.items() if "lora_B" in name), "it was trained"
