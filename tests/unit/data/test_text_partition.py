# SPDX-License-Identifier: Apache-2.0
"""Pooled questions and summaries dealt to sites: nothing lost, nobody at two sites, as uneven as asked."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import medflare
from medflare.core.errors import ConfigError
from medflare.data.load import load_cohort
from medflare.data.partition.partitioning import (
    assign_to_sites,
    class_shares,
    dirichlet_shares,
    even_shares,
)
from medflare.data.partition.texts import (
    TEXT_PARTITIONS,
    TextPlan,
    grouped_by_findings,
    partition_texts,
    write_text_partition,
)
from medflare.data.records import Question, Summary
from medflare.data.settings.site import SiteConfig, load_site_file
from medflare.data.text_heterogeneity import text_heterogeneity

SITES = ("site-1", "site-2", "site-3", "site-4")


def questions(count: int = 240, groups: int = 6) -> list[Question]:
    options = (("A", "x"), ("B", "y"))
    return [
        Question(
            question_id=f"q{i}",
            text=f"What is {i}?",
            options=options,
            answer="A",
            group=f"group {i % groups}",
            split=("train", "train", "val", "test")[i % 4],
        )
        for i in range(count)
    ]


def summaries(count: int = 120) -> list[Summary]:
    return [
        Summary(
            summary_id=f"s{i}", source=f"{i} cm.", target="Small.", patient_id=f"p{i // 3}", group=f"{i % 2}"
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("method", TEXT_PARTITIONS)
def test_every_question_is_at_one_site_with_its_split(method: str) -> None:
    pool = questions()
    dealt = partition_texts(pool, TextPlan(sites=SITES, method=method))
    assert sorted(q.question_id for own in dealt.values() for q in own) == sorted(q.question_id for q in pool)
    assert {q.question_id: q.split for own in dealt.values() for q in own} == {
        q.question_id: q.split for q in pool
    }
    assert all(dealt.values())
    assert dealt == partition_texts(pool, TextPlan(sites=SITES, method=method))
    assert dealt != partition_texts(pool, TextPlan(sites=SITES, method=method, seed=1))


@pytest.mark.parametrize("method", TEXT_PARTITIONS)
def test_all_summaries_of_a_patient_are_at_one_site(method: str) -> None:
    dealt = partition_texts(summaries(), TextPlan(sites=SITES, method=method))
    patients = [{summary.patient_id for summary in own} for own in dealt.values()]
    assert sum(map(len, patients)) == len(set().union(*patients)) == 40


@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 10**6))
def test_by_class_a_group_is_at_no_more_sites_than_it_must(sites: int, groups: int, seed: int) -> None:
    kinds = [f"g{i}" for i in range(groups)]
    shares = class_shares(kinds, np.ones(sites), np.random.default_rng(seed))
    table = np.array([shares(kind) for kind in kinds])
    assert np.allclose(table.sum(axis=1), 1)
    assert (table.sum(axis=0) > 0).all()
    assert (table > 0).sum(axis=1).max() <= max(2, -(-sites // groups))


def test_class_is_more_uneven_than_dirichlet_and_that_than_iid() -> None:
    def divergence(method: str) -> float:
        plans = (TextPlan(sites=SITES, method=method, seed=seed) for seed in range(5))
        heterogeneities = (text_heterogeneity(partition_texts(questions(), plan)) for plan in plans)
        return float(np.mean([facts["mean_divergence"] for facts in heterogeneities]))

    assert divergence("iid") < 0.05 < divergence("dirichlet") < divergence("class")


def test_a_small_alpha_is_more_uneven_than_a_large_one() -> None:
    def spread(alpha: float) -> float:
        plan = TextPlan(sites=SITES, method="dirichlet", alpha=alpha)
        return float(text_heterogeneity(partition_texts(questions(), plan))["mean_divergence"])

    assert spread(0.1) > spread(10.0)


@settings(max_examples=25)
@given(st.integers(0, 1000))
def test_sizes_are_kept_on_average(seed: int) -> None:
    sizes = np.array([1.0, 2.0, 5.0])
    owners = {str(i): "one" for i in range(80)}
    rng = np.random.default_rng(seed)
    assert list(Counter(assign_to_sites(owners, even_shares(sizes), 3, rng).values()).values()) != []
    counts = Counter(assign_to_sites(owners, even_shares(sizes), 3, rng).values())
    assert [counts[site] for site in range(3)] == [10, 20, 50]
    drawn = dirichlet_shares(sizes, 100.0, rng)("one")
    assert np.abs(drawn - sizes / 8).max() < 0.15


def test_no_site_is_left_without_anybody() -> None:
    owners = {str(i): "one" for i in range(9)}
    given = assign_to_sites(owners, lambda kind: np.array([1.0, 0.0, 0.0]), 3, np.random.default_rng(0))
    assert Counter(given.values()) == {0: 7, 1: 1, 2: 1}


BAD = {
    "an unknown method": (
        TextPlan(sites=SITES, method="clusters"),
        240,
        6,
        "there are iid, class, dirichlet",
    ),
    "alpha of nothing": (TextPlan(sites=SITES, method="dirichlet", alpha=0), 240, 6, "must be above 0"),
    "more sites than questions": (
        TextPlan(sites=SITES),
        3,
        3,
        "3 questions or patients cannot be dealt to 4",
    ),
    "no site": (TextPlan(sites=()), 240, 6, "cannot be dealt to 0 sites"),
    "one group by class": (
        TextPlan(sites=SITES, method="class"),
        240,
        1,
        "all records are of one, 'group 0'",
    ),
    "one group by shares": (TextPlan(sites=SITES, method="dirichlet"), 240, 1, "or deal them iid"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_dealt_is_refused(case: str) -> None:
    plan, count, groups, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        partition_texts(questions(count, groups), plan)


def test_what_is_written_is_read_again_with_its_knowledge(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    (tmp_path / "terms.obo").write_text("[Term]\nid: T:1\nname: asthma\n")
    settings = {"knowledge": {"vocabulary": ["terms.obo"], "key": "key"}}
    plan = TextPlan(sites=SITES)
    dealt = partition_texts(questions(), plan)
    sites = load_site_file(write_text_partition(questions(), plan, tmp_path, settings))
    assert list(sites) == list(SITES)
    for name, config in sites.items():
        assert load_cohort(config).questions == dealt[name]
        assert config.knowledge is not None
        assert config.knowledge.vocabulary == (tmp_path / "terms.obo",)


def test_findings_group_summaries_by_the_rarest_of_a_patient() -> None:
    texts = {"a": "Cardiomegaly.", "b": "Pneumothorax. Cardiomegaly.", "c": "Lungs are clear."}
    rows = [Summary(summary_id=k, source=text, target="As above.", patient_id=k) for k, text in texts.items()]
    assert [row.group for row in grouped_by_findings(rows)] == ["cardiomegaly", "pneumothorax", "no finding"]


def pooled(folder: Path, format: str, rows: list[dict[str, object]], more: str = "") -> Path:
    (folder / "pool").mkdir(exist_ok=True)
    (folder / "pool" / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "site.yaml").write_text(f"name: pool\ncohort: {{format: {format}, root: pool}}\n{more}")
    return folder / "site.yaml"


def run(*given: object) -> tuple[int, str]:
    result = medflare("cohort", *given, columns=160)
    return result.exit_code, result.output


def test_the_command_deals_questions_and_takes_the_knowledge_along(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    rows = [
        {"question": f"{i}?", "options": ["x", "y"], "answer": "A", "site": f"subject {i % 5}"}
        for i in range(60)
    ]
    more = "knowledge: {extractor: model, key: key, together: 0.1}\n"
    source = pooled(tmp_path, "questions_jsonl", rows, more)
    code, shown = run("partition", source, tmp_path / "out", "--sites", 2, "--method", "class", "--json")
    assert code == 0, shown
    facts = json.loads(shown)
    assert sum(row["records"] for row in facts["rows"]) == 60
    sites = load_site_file(tmp_path / "out")
    knowledge = sites["site-2"].knowledge
    assert knowledge is not None
    assert (knowledge.key.resolve(), knowledge.together) == (tmp_path / "key", 0.1)
    assert run("inspect", tmp_path / "out")[0] == 0


def test_the_command_deals_notes_by_patient_with_what_their_annotation_covers(tmp_path: Path) -> None:
    rows = [
        {
            "doc_id": f"n{i}",
            "patient_id": f"P{i // 2}",
            "split": ("train", "test")[i // 2 % 2],
            "text": f"Asthma of grade {i}.",
            "entities": [{"id": "T1", "label": "problem", "spans": [[0, 6]]}],
        }
        for i in range(24)
    ]
    source = pooled(tmp_path, "notes_jsonl", rows)
    source.write_text(source.read_text().replace("root: pool", "root: pool, annotated: [problem, test]"))
    code, shown = run("partition", source, tmp_path / "out", "--sites", 3, "--json")
    assert code == 0, shown
    facts = json.loads(shown)
    assert facts["columns"] == [
        "site",
        "patients",
        "notes",
        "words",
        "entities",
        "divergence",
        "vocabulary",
        "overlap",
    ]
    assert [(row["patients"], row["notes"], row["entities"]) for row in facts["rows"]] == [(4, 8, 8)] * 3
    assert facts["labels"]["site-1"] == {"problem": 1.0}
    notes = {name: load_cohort(site).notes for name, site in load_site_file(tmp_path / "out").items()}
    at = {name: {note.patient_id for note in dealt} for name, dealt in notes.items()}
    assert sum(map(len, at.values())) == len(set().union(*at.values())) == 12
    every = [note for dealt in notes.values() for note in dealt]
    assert {note.annotated for note in every} == {("problem", "test")}
    (pool,) = (load_cohort(site).notes for site in load_site_file(source).values())
    assert {(n.note_id, n.split, n.entities) for n in every} == {
        (n.note_id, n.split, n.entities) for n in pool
    }
    code, shown = run("partition", source, tmp_path / "again", "--sites", 3)
    assert "of the entity types from the pool" in shown


ROWS: dict[str, dict[str, object]] = {
    "notes_jsonl": {"text": "Pain {}."},
    "questions_jsonl": {"question": "{}?", "options": ["x", "y"], "answer": "A"},
    "summaries_jsonl": {"source": "Pain {}.", "target": "Pain."},
}


@pytest.mark.parametrize("format", ROWS)
def test_the_pools_model_policy_and_other_settings_serve_every_site(format: str, tmp_path: Path) -> None:
    def row(number: int) -> dict[str, object]:
        filled = {k: v.format(number) if isinstance(v, str) else v for k, v in ROWS[format].items()}
        return {**filled, "id": f"r{number}"}

    (tmp_path / "model").mkdir()
    more = "\n".join(
        (
            "backbone: {folder: model, precision: fp32}",
            "policy: {min_sites: 2}",
            "scorers: {bertscore: scorer}",
            "validation: {format: notes_jsonl, root: common}",
            "threads: 2",
            "state: kept",
        )
    )
    source = pooled(tmp_path, format, [row(number) for number in range(9)], more)
    code, shown = run("partition", source, tmp_path / "out", "--sites", 2)
    assert code == 0, shown
    (pool,) = load_site_file(source).values()
    for site in load_site_file(tmp_path / "out").values():
        assert (everything_else(site), site.state) == (everything_else(pool), None)
        assert site.policy.min_sites == 2


def everything_else(site: SiteConfig) -> str:
    """Settings beside the records, with paths that count from nowhere."""
    text = site.model_dump_json(exclude={"name", "cohort", "state"})
    return re.sub(r'/[^"]+', lambda path: os.path.normpath(path.group()), text)


def test_a_model_of_this_machine_stays_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medflare.data.settings.site.stored_model", lambda name: tmp_path / "models" / name)
    rows: list[dict[str, object]] = [{"id": f"n{i}", "text": f"Pain {i}."} for i in range(4)]
    source = pooled(tmp_path, "notes_jsonl", rows, "backbone: {name: tiny}\n")
    assert run("partition", source, tmp_path / "out", "--sites", 2)[0] == 0
    written = yaml.safe_load((tmp_path / "out" / "site.yaml").read_text())
    assert [site["backbone"] for site in written["sites"].values()] == [{"name": "tiny"}] * 2


REFUSED = {
    "notes by class": ("notes_jsonl", ["--method", "class"], "they have no classes and are dealt iid alone"),
    "too few notes": (
        "notes_jsonl",
        ["--sites", "10"],
        "9 questions or patients cannot be dealt to 10 sites",
    ),
    "studies' method": (
        "questions_jsonl",
        ["--method", "report_clusters"],
        "there are iid, class, dirichlet",
    ),
    "questions by findings": ("questions_jsonl", ["--by-findings"], "goes with summaries"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_command_refuses(case: str, tmp_path: Path) -> None:
    format, given, message = REFUSED[case]
    rows = [
        {"question": f"{i}?", "options": ["x", "y"], "answer": "A", "text": f"Pain {i}."} for i in range(9)
    ]
    code, shown = run("partition", pooled(tmp_path, format, rows), tmp_path / "out", *given)
    assert code == 2
    assert message in " ".join(shown.split())
