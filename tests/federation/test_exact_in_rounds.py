# SPDX-License-Identifier: Apache-2.0
"""Exact comparison of knowledge graphs through controller and executors: who learns what, who is left out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from fed_graphs import (
    FIRST,
    RANGES,
    SECOND,
    SHARED,
    SITES,
    TASKS,
    THIRD,
    compared,
    comparison,
    lines,
    not_compared,
    sizes,
)
from fed_harness import completed, failed
from nvflare.apis.dxo import from_shareable

from medflare.knowledge.private_intersection import keyed_elements, message_bytes
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import jaccard
from medflare.worker import exact_comparison as site_exact
from medflare.worker.exact_comparison import ANSWERS_FILE


def test_the_distances_are_the_exact_ones_of_the_graphs_and_the_odds_heed_them(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    record = completed(run(settings={"draws": 2, "epsilon": 0.5}))
    report = comparison(record)
    assert sizes(report) == SHARED
    assert (report["without"], report["not_compared"], report["waves"]) == ({}, [], 3)
    graphs = {site: cohorts.graph(site) for site in SITES}
    for i, one in enumerate(SITES):
        for j, other in enumerate(SITES):
            exact = 0.0 if i == j else 1 - jaccard(graphs[one], graphs[other])
            assert report["distances"]["matrix"][i][j] == pytest.approx(exact, abs=1e-6)
    assert report["distances"]["order"] == list(SITES)
    assert report["sites"][FIRST] == {"elements": 40, "texts": 1, "empty": False}
    assert 0 < record.rounds[0].rule["solution"]["divergence"] <= 0.5
    assert "sketches" not in record.preparation


def test_no_message_holds_a_triple_its_digest_or_the_key(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    seen: list[bytes] = []

    def note(site: str, task: str, message: Any) -> None:
        if task in TASKS:
            dxo = from_shareable(message)
            seen.extend([str(dxo.meta).encode(), *(value.numpy().tobytes() for value in dxo.data.values())])

    federation = run(tamper=note, mislead=note)
    report = compared(federation)
    messages = b"\n".join(seen)
    moved = sum(message_bytes(len(RANGES[asker])) * 2 + message_bytes(len(RANGES[h])) for asker, h in SHARED)
    assert len(messages) > moved
    assert report["bytes"]["from_sites"] == pytest.approx(moved, abs=16 * 9)
    assert report["bytes"]["to_sites"] == report["bytes"]["from_sites"]
    key = SketchKey(bytes.fromhex(cohorts.secret), "medflare")
    digests = {word for site in SITES for word in keyed_elements(cohorts.graph(site), key)}
    forbidden = {word.encode() for word in digests} | {bytes.fromhex(word) for word in digests}
    forbidden |= {b"symptom", b"disease", cohorts.secret.encode(), bytes.fromhex(cohorts.secret)}
    left = messages + (federation.folder / "run.json").read_bytes()
    left += b"".join((federation.site_folder(site) / "egress.jsonl").read_bytes() for site in SITES)
    assert not [word for word in forbidden if word in left]


def test_every_message_is_in_the_ledger_with_its_partner_bytes_and_digest(graph_hospitals) -> None:
    _, run = graph_hospitals
    federation = run()
    compared(federation)
    steps = [
        (line.task, line.exact.get("partner"), line.exact.get("message")) for line in lines(federation, FIRST)
    ]
    assert steps[0] == ("count", None, None)
    assert sorted(steps[1:]) == [
        ("compare", SECOND, None),
        ("compare", THIRD, None),
        ("offer", SECOND, "request"),
        ("offer", THIRD, "request"),
    ]
    offers = [line for line in lines(federation, FIRST) if line.task == "offer"]
    assert {line.bytes for line in offers} == {line.exact["bytes"] for line in offers} == {35 * 40}
    assert len({line.exact["sha256"] for line in offers}) == 2, "a key of its own for each pair"
    assert lines(federation, FIRST)[0].facts == [
        "elements",
        "examples",
        "key",
        "seconds",
        "state",
        "vocabulary",
    ]
    answers = [line.exact["message"] for line in lines(federation, THIRD) if line.task == "answer"]
    assert answers == ["response", "response"]


def test_a_site_that_has_not_said_yes_tells_nothing_and_is_at_the_typical_distance(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    cohorts.write(THIRD, knowledge_exact="deny")
    federation = run()
    report = compared(federation)
    assert (
        "policy.knowledge_exact: no exact size of the knowledge graph may be told" in report["without"][THIRD]
    )
    assert sizes(report) == {(FIRST, SECOND): 30}
    matrix = report["distances"]["matrix"]
    assert matrix[0][2] == matrix[1][2] == matrix[0][1] == pytest.approx(1 - 30 / 70)
    assert {line.event for line in lines(federation, THIRD)} == {"blocked", "failure"}
    assert not list((cohorts.root / THIRD).rglob(ANSWERS_FILE)), "nothing is even counted"


def test_no_is_the_default(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    file = cohorts.folder(SECOND) / "site.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    del settings["policy"]
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert "policy.knowledge_exact" in compared(run())["without"][SECOND]


def test_an_empty_graph_is_at_distance_one_and_a_small_one_is_typical(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    cohorts.know(FIRST, range(0))
    cohorts.know(SECOND, range(19))
    report = compared(run())
    assert report["sites"] == {
        FIRST: {"elements": 0, "texts": 1, "empty": True},
        THIRD: {"elements": 90, "texts": 1, "empty": False},
    }
    assert report["without"] == {
        SECOND: "its graph has fewer than 20 triples, of which sizes would tell single ones"
    }
    assert report["distances"]["matrix"] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert report["pairs"] == []


def test_a_graph_that_is_too_large_is_named_with_what_to_do(graph_hospitals, monkeypatch) -> None:
    _, run = graph_hospitals
    monkeypatch.setattr(site_exact, "MOST", 89)
    report = compared(run())
    assert "compare by sketches (rule_settings.distances=sketches)" in report["without"][THIRD]
    assert sizes(report) == {(FIRST, SECOND): 30}


def test_a_site_without_the_block_or_the_package_says_so_and_time_alone_counts(
    graph_hospitals, monkeypatch
) -> None:
    cohorts, run = graph_hospitals
    cohorts.write(FIRST, knowledge=False)
    monkeypatch.setattr(site_exact, "available", lambda: False)
    record = completed(run())
    report = comparison(record)
    assert report["without"] == {
        FIRST: "site.yaml has no block `knowledge`",
        SECOND: "openmined.psi is not installed there; `pip install 'medflare[psi]'`",
        THIRD: "openmined.psi is not installed there; `pip install 'medflare[psi]'`",
    }
    assert "distances" not in report
    assert record.rounds[0].rule["solution"]["divergence"] == 0


def test_another_key_leaves_a_site_out_and_a_key_for_each_ends_the_run(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    cohorts.write(SECOND, secret=SketchKey.new_secret().hex())
    report = compared(run())
    assert sizes(report) == {(FIRST, THIRD): 10}
    assert "is not that of other sites" in report["without"][SECOND]


def test_where_every_site_has_a_key_of_its_own_the_run_says_so_before_anybody_trains(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    for site in SITES:
        cohorts.write(site, secret=SketchKey.new_secret().hex())
    record = failed(run(), "no two sites have the same key and context")
    assert record.rounds == []


def test_the_policys_limits_on_texts_and_bytes_hold_here_too(graph_hospitals) -> None:
    cohorts, run = graph_hospitals
    cohorts.write(FIRST, min_examples=2)
    cohorts.write(THIRD, max_bytes_per_round=3000)
    report = compared(run(num_rounds=1))
    assert (
        "policy.min_examples: the size of a knowledge graph is about fewer than 2" in report["without"][FIRST]
    )
    assert "policy.max_bytes_per_round" in not_compared(report)[SECOND, THIRD]


def test_under_masks_graphs_are_compared_and_updates_are_hidden(graph_hospitals) -> None:
    _, run = graph_hospitals
    record = completed(run(protection="masking", settings={"draws": 6}))
    assert sizes(comparison(record)) == SHARED
    assert record.protections == ["mask"]
