# SPDX-License-Identifier: Apache-2.0
"""`medflare extract`: files that can be read again, notes that cannot be read, and what a clinician sees."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from command_line import medflare
from medflare.cli.extract_view import COLOURS, coloured, print_note
from medflare.core.inventory import ENTITY_TYPES
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RunRecord
from medflare.data.records import Entity, Note, Relation
from medflare.learners.extraction.learner import build as build_extraction
from medflare.learners.token_classification.learner import build
from medflare.synthetic.notes import NOTE_HOSPITALS, generate_notes, write_notes_hospital
from site_builders import read_cohort, site_config, write_result

NOTE = "Chief complaint: chest pain.\r\nShe denies fever. Aspirin 81 mg daily was started.\r\n"


def written(folder: Path, learner: Any) -> Path:
    """A run's folder as the server writes it."""
    write_result(folder / "result", learner)
    record = RunRecord(job="j", method="m", run_id="r", started="2026-01-01T00:00:00Z")
    record.artefacts["final"] = "result/adapter"
    record.write(folder / "run.json")
    return folder


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notes_hospital(NOTE_HOSPITALS[0], tmp_path_factory.mktemp("notes"), 24, "jsonl")


@pytest.fixture(scope="module")
def run(hospital: Path, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger that has learned what is plain."""
    settings = {"optimiser": {"batch": 16, "lr": 4e-3}, "local_epochs": 5}
    learner = build(settings, site_config("notes_jsonl", hospital, tiny_encoder), 0)
    learner.load_shared(learner.initial_shared())
    learner.fit(RoundPlan(round=0, rounds=1))
    return written(tmp_path_factory.mktemp("run"), learner)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for note in generate_notes(NOTE_HOSPITALS[0], 3):
        (folder / f"{note.note_id}.txt").write_bytes(note.text.replace("\n", "\r\n").encode())
    return folder


def extract(run: Path, encoder: Path, *given: Any) -> Any:
    fixed = ["-r", run, "--backbone", encoder, "--precision", "fp32"]
    return medflare("extract", *given, *fixed)


def test_both_formats_hold_the_same_and_are_read_again(
    run: Path, tiny_encoder: Path, notes: Path, tmp_path: Path
) -> None:
    done = extract(run, tiny_encoder, notes, "--out", tmp_path / "brat", "--json")
    assert done.exit_code == 0, done.output
    output = json.loads(done.stdout)
    assert (
        done.exit_code
        == extract(run, tiny_encoder, notes, "--out", tmp_path / "lines", "--format", "jsonl").exit_code
    )
    brat, lines = (
        read_cohort(*place).notes
        for place in (("brat", tmp_path / "brat"), ("notes_jsonl", tmp_path / "lines"))
    )
    assert [(n.note_id, n.text, set(n.entities)) for n in brat] == [
        (n.note_id, n.text, set(n.entities)) for n in lines
    ]
    entities = [entity for note in brat for entity in note.entities]
    heads = sum(entity.label in ENTITY_TYPES for entity in entities)
    assert output["notes"] == 3
    assert output["left_out"] == []
    assert sum(output["entities"].values()) == heads > 5
    assert sum(output["entities"].values()) + sum(output["modifiers"].values()) == len(entities)
    assert output["links"] == sum(len(note.relations) for note in brat) > 0
    assert len(output["files"]) == 6
    assert output["notice"] == "Draft for a clinician to check, never a diagnosis."
    assert json.loads((tmp_path / "brat" / "about.json").read_text())["model"]["run_id"] == "r"
    for format_ in ("xmi", "fhir"):
        assert (
            extract(run, tiny_encoder, notes, "--out", tmp_path / format_, "--format", format_).exit_code == 0
        )
    cas = read_cohort("cas_xmi", tmp_path / "xmi").notes
    assert [(n.text, sorted(e.spans for e in n.entities)) for n in cas] == [
        (n.text, sorted(e.spans for e in n.entities)) for n in brat
    ]
    fhir = read_cohort("fhir_ndjson", tmp_path / "fhir", tasks=()).notes
    assert [n.text for n in fhir] == [n.text for n in brat]
    written = [json.loads(line) for line in (tmp_path / "fhir/extracted.ndjson").read_text().splitlines()]
    marked = [item for item in written if item["resourceType"] == "Observation"]
    assert {item["status"] for item in marked} == {"preliminary"}
    assert len(marked) <= len(entities)


def test_the_result_is_named_by_its_run_or_by_itself(run: Path, tiny_encoder: Path, notes: Path) -> None:
    first = extract(run, tiny_encoder, notes, "--json")
    second = extract(run / "result" / "adapter", tiny_encoder, notes, "--json")
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert json.loads(first.stdout)["documents"][0]["entities"]


def test_what_cannot_be_read_is_said_and_the_others_go_on(
    run: Path, tiny_encoder: Path, notes: Path, tmp_path: Path
) -> None:
    (notes / "empty.txt").write_text(" \n")
    (notes / "old.txt").write_bytes(b"caf\xe9")
    given = [notes, tmp_path / "missing.txt"]
    done = extract(run, tiny_encoder, *given, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 7, done.output
    output = json.loads(done.stdout)
    assert output["notes"] == 3
    assert {Path(item["file"]).name: item["reason"] for item in output["left_out"]} == {
        "empty.txt": "empty note",
        "missing.txt": "unreadable file",
        "old.txt": "not UTF-8",
    }
    assert "byte 3" in done.stderr
    assert len(list((tmp_path / "out").iterdir())) == 7  # three notes, their annotation, about.json


def test_the_notes_of_a_site_file_are_marked_in_any_format(
    run: Path, tiny_encoder: Path, notes: Path, tmp_path: Path
) -> None:
    """Ids of a database are no names of files: about.json says which file is which, and JSON keeps them."""
    texts = [path.read_bytes().decode() for path in sorted(notes.iterdir())]
    ids = ["../2024/A:1", "a_1", "A/1"]
    with (tmp_path / "export.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerows([["Note ID", "Note text"], *zip(ids, texts, strict=True)])
    site = tmp_path / "site.yaml"
    columns = {"doc_id": "Note ID", "text": "Note text"}
    cohort = {"format": "notes_jsonl", "root": str(tmp_path), "columns": columns, "tasks": []}
    site.write_text(yaml.safe_dump({"name": "ward", "cohort": cohort}))
    plain = extract(run, tiny_encoder, notes, "--json")
    lines = extract(run, tiny_encoder, "-f", site, "--json")
    found = json.loads(lines.stdout)["documents"]
    assert [row["doc_id"] for row in found] == ids
    assert [row["entities"] for row in found] == [
        row["entities"] for row in json.loads(plain.stdout)["documents"]
    ]
    done = extract(run, tiny_encoder, "-f", site, "--site", "ward", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").glob("*.ann")) == [
        "A_1-2.ann",
        "_2024_A_1.ann",
        "a_1.ann",
    ]
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["ids"] == {"_2024_A_1": "../2024/A:1", "A_1-2": "A/1"}
    read = read_cohort("brat", tmp_path / "out").notes
    assert {note.text for note in read} == set(texts)
    assert all(note.entities for note in read)
    again = extract(run, tiny_encoder, "-f", site, "--out", tmp_path / "out")
    assert "--overwrite" in again.stderr


def test_marks_of_a_site_are_not_shown_as_the_models(
    hospital: Path, run: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    wrong = {"id": "T1", "label": "drug", "spans": [[0, 5]]}
    rows = [json.loads(line) for file in hospital.glob("*.jsonl") for line in file.read_text().splitlines()][
        :2
    ]
    (tmp_path / "notes.jsonl").write_text(
        "".join(json.dumps(row | {"entities": [wrong], "relations": []}) + "\n" for row in rows)
    )
    blocks = {name: {"cohort": {"format": "notes_jsonl", "root": str(tmp_path)}} for name in ("a", "b")}
    site.write_text(yaml.safe_dump({"sites": blocks}))
    asked = extract(run, tiny_encoder, "-f", site, "--json")
    assert (asked.exit_code, "choose one with --site" in asked.stdout) == (2, True)
    found = json.loads(extract(run, tiny_encoder, "-f", site, "--site", "b", "--json").stdout)["documents"]
    assert all([0, 5] not in entity["spans"] for row in found for entity in row["entities"])
    assert all(row["entities"] for row in found)


def test_surrogates_in_a_sites_notes_are_told(run: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    """Marks count in the texts that are written, which are not the hospital's own."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "notes").mkdir()
    text = "Seen on 2024-03-05 by Dr. Alice Miller for asthma."
    (tmp_path / "notes" / "notes.jsonl").write_text(json.dumps({"doc_id": "n1", "text": text}))
    site = tmp_path / "site.yaml"
    cohort = {"format": "notes_jsonl", "root": "notes", "deidentify": "replace", "deidentify_key": "key"}
    site.write_text(yaml.safe_dump({"cohort": cohort}))
    done = extract(run, tiny_encoder, "-f", site, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "surrogates" in done.output
    assert "hold identifiers" not in done.output
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["identifiers_replaced"]["date"] == 1
    assert "2024-03-05" not in (tmp_path / "out" / "n1.txt").read_text()


def test_a_site_without_notes_is_named(run: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Why?", "options": ["a", "b"], "answer": "A"}))
    site = tmp_path / "site.yaml"
    site.write_text(yaml.safe_dump({"cohort": {"format": "questions_jsonl", "root": str(tmp_path)}}))
    done = extract(run, tiny_encoder, "-f", site)
    assert (done.exit_code, "holds no clinical notes" in done.stderr) == (3, True)


def test_nothing_to_read_is_exit_code_3(run: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    done = extract(run, tiny_encoder, tmp_path / "empty.txt")
    assert done.exit_code == 3
    assert "none of 1 file(s) could be read" in done.stderr


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["--format", "xmi"], 2, "is of files; name their folder with --out"),
        (["--format", "xml"], 2, "expected one of brat, xmi, jsonl, fhir"),
        (["--personalised", "x"], 2, "no part is personalised"),
        (["--site", "a"], 2, "--site a: goes with --site-file"),
        (["-f", "site.yaml"], 2, "Name text files or folders of them, or a site.yaml"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    given: list[str], code: int, message: str, run: Path, tiny_encoder: Path, notes: Path
) -> None:
    done = extract(run, tiny_encoder, notes, "--json", *given)
    assert done.exit_code == code
    assert message in " ".join(done.stderr.split())


def test_another_backbone_is_refused(run: Path, tiny_backbone: Path, notes: Path) -> None:
    done = extract(run, tiny_backbone, notes, "--json")
    assert done.exit_code == 2
    assert "holds a llama" in done.stderr


def test_annotation_that_is_there_stays_unless_asked(run: Path, tiny_encoder: Path, notes: Path) -> None:
    annotation = sorted(notes.iterdir())[0].with_suffix(".ann")
    annotation.write_text("T1\tproblem 0 2\tab\n")
    done = extract(run, tiny_encoder, notes, "--out", notes)
    assert done.exit_code == 3
    assert annotation.read_text() == "T1\tproblem 0 2\tab\n"
    assert extract(run, tiny_encoder, notes, "--out", notes, "--overwrite").exit_code == 0
    assert annotation.read_text() != "T1\tproblem 0 2\tab\n"


def test_a_note_longer_than_the_context_is_read_to_its_end(
    run: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    sentence = "She has chest pain and takes aspirin and ibuprofen and has no fever "
    (tmp_path / "long.txt").write_text(sentence * 60)
    done = extract(run, tiny_encoder, tmp_path / "long.txt", "--json")
    assert done.exit_code == 0, done.output
    spans = [s for e in json.loads(done.stdout)["documents"][0]["entities"] for s in e["spans"]]
    assert max(end for _, end in spans) > 55 * len(sentence)


def test_a_note_on_the_screen_leaves_no_file(
    run: Path, tiny_encoder: Path, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = extract(run, tiny_encoder, notes, "--show")
    assert done.exit_code == 0, done.output
    assert "modifiers" in done.stdout
    assert "problem" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_a_language_model_s_result_opens_the_same_way(
    hospital: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """One with random weights is asked about each of the three sentences and marks nothing."""
    small = {"lora": {"rank": 2, "lora_alpha": 4, "targets": ["q_proj"]}, "max_tokens": 500}
    learner = build_extraction(small, site_config("notes_jsonl", hospital, tiny_backbone), 0)
    folder = written(tmp_path / "run", learner)
    (tmp_path / "n.txt").write_bytes(NOTE.encode())
    done = extract(folder, tiny_backbone, tmp_path / "n.txt", "--json")
    assert done.exit_code == 0, done.output
    output = json.loads(done.stdout)
    assert (output["notes"], output["outputs"], output["entities"], output["links"]) == (1, 3, {}, 0)


# ---- the view --------------------------------------------------------------------------------------------


def shown() -> Note:
    return Note(
        note_id="n1",
        text="No \x1b[31mfever .\r\nChest pain",
        entities=(
            Entity(entity_id="T1", label="problem", spans=((8, 13),)),
            Entity(entity_id="T2", label="negation", spans=((0, 2),)),
            Entity(entity_id="T3", label="problem", spans=((17, 27),)),
            Entity(entity_id="T4", label="bodyloc", spans=((17, 22),)),
        ),
        relations=(
            Relation(label="hasAttr", head="T1", tail="T2"),
            Relation(label="hasAttr", head="T3", tail="T4"),
        ),
    )


def test_colours_stand_where_the_offsets_say_and_no_note_commands_the_terminal() -> None:
    text = coloured(shown())
    assert len(text) == len(shown().text)
    assert "\x1b" not in text.plain
    assert [(s.start, s.end) for s in text.spans if s.style == COLOURS["problem"]] == [(8, 13), (17, 27)]
    assert [(s.start, s.end) for s in text.spans if s.style == "underline"] == [(0, 2), (17, 22)]


def test_modifiers_stand_beside_their_entity() -> None:
    out = StringIO()
    print_note(Console(file=out, width=100, color_system=None), shown())
    rows = re.sub(r"[│|]", " ", out.getvalue())
    assert re.search(r"problem +fever +negation: No", rows)
    assert re.search(r"problem +Chest pain +bodyloc: Chest", rows)
