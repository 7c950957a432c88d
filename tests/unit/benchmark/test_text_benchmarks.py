# SPDX-License-Identifier: Apache-2.0
"""`medflare benchmark medlora` and `questions`: who trains, what is tested, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site_file
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["benchmark", *arguments])


def built(out: Path, *arguments: str) -> dict[str, Any]:
    result = run(arguments[0], str(out), *arguments[1:])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads((out / "benchmark.json").read_text())
    return facts


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site.yaml of three corpora, one of them in BRAT's format."""
    folder = tmp_path_factory.mktemp("corpora")
    sites = {}
    for number, (name, format) in enumerate((("mtsamples", "brat"), ("utp", "jsonl"), ("yale", "jsonl"))):
        write_notes_hospital(NOTE_HOSPITALS[number], folder / name, 20, format)
        reader = "brat" if format == "brat" else "notes_jsonl"
        sites[name] = {"cohort": {"format": reader, "root": name}}
    (folder / "corpora.yaml").write_text(yaml.safe_dump({"sites": sites}))
    return folder / "corpora.yaml"


@pytest.fixture(scope="module")
def exams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of questions in the columns of MedQA and MedMCQA."""
    folder = tmp_path_factory.mktemp("exams")
    for name, subjects, count in (("medqa", ("",), 20), ("medmcqa", ("Surgery", "Anatomy", "Dental"), 60)):
        rows = [
            {
                "id": str(number),
                "question": f"Which finding of case {name} {number} is typical?",
                "options": {"A": f"a{number}", "B": f"b{number}", "C": f"c{number}"},
                "answer": "ABC"[number % 3],
                "subject_name": subjects[number % len(subjects)],
                "split": "test" if number % 5 == 0 else "dev" if number % 5 == 1 else "train",
            }
            for number in range(count)
        ]
        (folder / name).mkdir()
        (folder / name / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sites = {n: {"cohort": {"format": "questions_jsonl", "root": n}} for n in ("medqa", "medmcqa")}
    (folder / "qa.yaml").write_text(yaml.safe_dump({"sites": sites}))
    return folder / "qa.yaml"


def test_two_sites_train_and_a_new_site_is_tested_as_a_whole(corpora: Path, tmp_path: Path) -> None:
    facts = built(tmp_path / "two", "medlora", "--sources", str(corpora), "--external", "yale")
    assert list(facts["clients"]) == ["mtsamples", "utp"]
    trained = load_site_file(tmp_path / "two/site.yaml")
    assert {n.split for n in load_cohort(trained["utp"]).notes} <= {"train", "val"}
    tested = load_site_file(tmp_path / "two/test.yaml")
    assert list(tested) == ["mtsamples-test", "utp-test", "yale-external"]
    whole = load_cohort(load_site_file(corpora)["yale"]).notes
    external = load_cohort(tested["yale-external"]).notes
    assert len(external) == len(whole) == facts["splits"]["yale-external/test"]["records"]
    assert [n.entities for n in external] == [n.entities for n in whole]
    ids = [{n.note_id for n in load_cohort(c).notes} for c in (*trained.values(), *tested.values())]
    assert sum(map(len, ids)) == len(set().union(*ids)), "a note is at one place"


def test_what_an_annotation_covers_goes_along_with_the_notes(corpora: Path, tmp_path: Path) -> None:
    """Types that nobody looked for in an external cohort must not count against a model there.

    One source is pooled of two annotations that cover different types.
    """
    folder = corpora.parent
    heads = {"format": "notes_jsonl", "root": str(folder / "utp"), "tasks": ["ner"]}
    few = {"format": "notes_jsonl", "root": str(folder / "yale"), "annotated": ["problem", "test"]}
    sites = {
        "first": {"cohort": {"format": "brat", "root": str(folder / "mtsamples")}},
        "few": {"cohort": few},
        "pooled": {"cohort": [heads, few]},
    }
    (tmp_path / "sources.yaml").write_text(yaml.safe_dump({"sites": sites}))
    given = ["--sources", str(tmp_path / "sources.yaml"), "--external", "few,pooled"]
    facts = built(tmp_path / "out", "medlora", *given)
    sources, tested = load_site_file(tmp_path / "sources.yaml"), load_site_file(tmp_path / "out/test.yaml")
    for name in ("few", "pooled"):
        before, after = load_cohort(sources[name]).notes, load_cohort(tested[f"{name}-external"]).notes
        kept = [{(n.text, n.tasks, n.annotated, n.entities) for n in notes} for notes in (before, after)]
        assert kept[0] == kept[1]
    assert {n.annotated for n in load_cohort(tested["few-external"]).notes} == {("problem", "test")}
    assert len({(n.tasks, n.annotated) for n in load_cohort(tested["pooled-external"]).notes}) == 2
    assert {t for t in facts["tables"] if t.startswith("pooled")} == {
        f"pooled-external/notes-{number}.jsonl" for number in (1, 2)
    }
    plain = load_site_file(tmp_path / "out/site.yaml")["first"].cohort[0]
    assert (plain.annotated, plain.tasks) == (None, ("ner", "re"))


def test_fewer_notes_are_a_part_of_more_and_the_tests_stay(corpora: Path, tmp_path: Path) -> None:
    notes, facts = {}, {}
    for count in (3, 6):
        out = tmp_path / str(count)
        facts[count] = built(out, "medlora", "--sources", str(corpora), "--train-notes", str(count))
        site = load_site_file(out / "site.yaml")["utp"]
        notes[count] = {n.note_id for n in load_cohort(site).notes if n.split == "train"}
    assert (len(notes[3]), len(notes[6])) == (3, 6)
    assert notes[3] < notes[6]
    assert facts[3]["splits"]["utp-test/test"] == facts[6]["splits"]["utp-test/test"]


def test_the_server_has_notes_that_nobody_trains_on(corpora: Path, tmp_path: Path) -> None:
    built(tmp_path / "plus", "medlora", "--sources", str(corpora), "--server-notes", "5")
    sites = load_site_file(tmp_path / "plus/site.yaml")
    assert list(sites) == ["mtsamples", "utp", "yale", "server"]
    notes = {name: {n.note_id for n in load_cohort(config).notes} for name, config in sites.items()}
    assert len(notes["server"]) == 5
    assert not notes["server"] & (notes["mtsamples"] | notes["utp"] | notes["yale"])


def test_nobody_trains_on_another_note_of_the_servers_patients(tmp_path: Path) -> None:
    sites = {"a": {"cohort": {"format": "notes_jsonl", "root": "a"}}}
    rows = [
        {
            "doc_id": f"n{number}",
            "patient_id": f"p{number // 2}",
            "text": f"Fever on visit {number}.",
            "split": "test" if number < 4 else "train",
            "entities": [{"id": "T1", "label": "problem", "spans": [[0, 5]]}],
            "relations": [],
        }
        for number in range(24)
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sources.yaml").write_text(yaml.safe_dump({"sites": sites}))
    built(tmp_path / "plus", "medlora", "--sources", str(tmp_path / "sources.yaml"), "--server-notes", "5")
    there = load_site_file(tmp_path / "plus/site.yaml")
    patients = {name: [n.patient_id for n in load_cohort(config).notes] for name, config in there.items()}
    assert len(patients["server"]) == 4, "whole patients of two notes each, at most five notes"
    assert len(patients["a"]) == 16
    assert not set(patients["server"]) & set(patients["a"])


@pytest.mark.parametrize("name", ["server", "utp-test"])
def test_a_source_named_like_notes_that_are_set_apart_is_refused(
    corpora: Path, name: str, tmp_path: Path
) -> None:
    """Its notes would have been written over."""
    sites = yaml.safe_load(corpora.read_text())["sites"]
    for site in sites.values():
        site["cohort"]["root"] = str(corpora.parent / site["cohort"]["root"])
    sites[name] = sites.pop("mtsamples")
    (tmp_path / "named.yaml").write_text(yaml.safe_dump({"sites": sites}))
    options = ["--sources", str(tmp_path / "named.yaml"), "--server-notes", "2"]
    refused = run("medlora", str(tmp_path / "out"), *options)
    assert refused.exit_code == 2, refused.output
    assert f"{name}: is the name of a source" in " ".join(refused.output.split())
    assert not (tmp_path / "out").exists()


def test_questions_are_dealt_by_subject_with_one_common_test_set(exams: Path, tmp_path: Path) -> None:
    options = ["--sources", str(exams), "--setting", "class", "--clients", "4"]
    facts = built(tmp_path / "qa", "questions", *options)
    clients = load_site_file(tmp_path / "qa/site.yaml")
    assert list(clients) == [f"client-{n}" for n in (1, 2, 3, 4)]
    dealt = [load_cohort(config).questions for config in clients.values()]
    assert {q.split for questions in dealt for q in questions} == {"train", "val"}
    assert all(len({q.group for q in questions}) <= 2 for questions in dealt), "one or two subjects each"
    common = load_cohort(load_site_file(tmp_path / "qa/test.yaml")["common-test"]).questions
    assert len(common) == 16 == facts["splits"]["common-test/test"]["records"]
    assert {q.group for q in common} == {"medqa", "Surgery", "Anatomy", "Dental"}
    assert len(common) + sum(map(len, dealt)) == 80
    assert built(tmp_path / "again", "questions", *options) == facts
    other = built(tmp_path / "other", "questions", *options, "--seed", "1")
    assert other["splits"]["common-test/test"] == facts["splits"]["common-test/test"]
    assert other["splits"] != facts["splits"]


def test_a_test_question_of_one_examination_is_not_trained_on_in_another(exams: Path, tmp_path: Path) -> None:
    shutil.copytree(exams.parent, tmp_path / "sources")
    file = tmp_path / "sources/medqa/medqa.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    others = [json.loads(line) for line in (exams.parent / "medmcqa/medmcqa.jsonl").open()]
    trained = next(row for row in rows if row["split"] == "train")
    tested = next(row for row in others if row["split"] == "test")
    trained |= {name: tested[name] for name in ("question", "options", "answer")}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = built(
        tmp_path / "qa", "questions", "--sources", str(tmp_path / "sources/qa.yaml"), "--clients", "4"
    )
    assert facts["moved_between_splits"] == 1
    clients = load_site_file(tmp_path / "qa/site.yaml").values()
    assert all(q.text != tested["question"] for config in clients for q in load_cohort(config).questions)
    assert facts["splits"]["common-test/test"]["records"] == 17


def test_test_notes_that_a_site_trains_on_are_counted(corpora: Path, tmp_path: Path) -> None:
    shutil.copytree(corpora.parent, tmp_path / "sources")
    options = ("--sources", str(tmp_path / "sources/corpora.yaml"), "--external", "yale")
    assert built(tmp_path / "before", "medlora", *options)["tests_that_are_trained_on"] == {}
    notes = load_cohort(load_site_file(corpora)["utp"]).notes
    trained = next(note.note_id for note in notes if note.split == "train")
    rows = [json.loads(line) for line in (tmp_path / "sources/utp/notes.jsonl").open()]
    row = next(row for row in rows if row["doc_id"] == trained)
    with (tmp_path / "sources/yale/notes.jsonl").open("a") as file:
        file.write(json.dumps(row | {"doc_id": "copied", "patient_id": "another"}) + "\n")
    result = run("medlora", str(tmp_path / "after"), *options)
    assert "yale-external: 1 of its notes stand word for word in the training of a site" in result.output
    facts = json.loads((tmp_path / "after/benchmark.json").read_text())
    assert facts["tests_that_are_trained_on"] == {"yale-external": 1}


def test_what_does_not_fit_is_named_and_nothing_is_left_behind(
    corpora: Path, exams: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def refused(*arguments: str) -> str:
        result = run(arguments[0], str(out), *arguments[1:])
        assert result.exit_code in (2, 3), result.output
        assert not list(tmp_path.iterdir())
        return " ".join(result.output.split())

    assert "the sources are mtsamples, utp, yale" in refused(
        "medlora", "--sources", str(corpora), "--external", "i2b2"
    )
    everything = "mtsamples,utp,yale"
    assert "at least one has to train" in refused(
        "medlora", "--sources", str(corpora), "--external", everything
    )
    assert "holds no annotated note" in refused("medlora", "--sources", str(exams))
    assert "holds no question" in refused("questions", "--sources", str(corpora))
    assert "cannot be dealt to 90 sites" in refused("questions", "--sources", str(exams), "--clients", "90")
    assert "setting" in refused("questions", "--sources", str(exams), "--setting", "clusters")
    missing = refused("questions", "--sources", str(tmp_path.parent / "nothing.yaml"))
    assert "nothing.yaml" in missing
