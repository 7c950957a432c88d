# SPDX-License-Identifier: Apache-2.0
"""What the server makes of exact sizes, whatever sites say; and what may leave a site in their exchange."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import NeedsExactSizes
from medflare.core.errors import RunError
from medflare.core.tensors import State
from medflare.data.settings.policy import PolicyConfig
from medflare.egress.chain import Egress
from medflare.egress.declaration import fact_problems, message_problems
from medflare.egress.failures import EgressError
from medflare.egress.policy import Policy, PolicyError
from medflare.egress.report import read_ledger
from medflare.federation.server.exact_comparison import Comparison
from medflare.federation.server.exchange import OnReply, Outcome
from medflare.federation.server.sketch_exchange import wants_sketches
from medflare.knowledge.private_intersection import MOST, message_bytes
from medflare.knowledge.site_pairs import pair_bytes
from medflare.protocol.messages import Reply
from medflare.wire.task_messages import TaskResult

KEY, OTHER = "0" * 32, "f" * 32
WORDS, OTHERS = "0" * 16, "f" * 16


class Sites:
    """Sites that send messages of the right length, share `shared` triples, and do what `odd` has them do."""

    def __init__(self, sizes: Mapping[str, int], shared: int = 7) -> None:
        self.sizes, self.shared = dict(sizes), shared
        self.keys = dict.fromkeys(sizes, KEY)
        self.vocabularies: dict[str, str] = {}
        self.odd: dict[tuple[str, str], Any] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.held = 0

    def reply(self, site: str, task: str, said: Mapping[str, Any], tensors: State) -> Reply:
        if task == "count":
            count = {"elements": self.sizes[site], "examples": 5, "key": self.keys[site]}
            count |= {"vocabulary": self.vocabularies[site]} if site in self.vocabularies else {}
            return Reply(-1, {"state": "counted", **count}, {})
        facts = {"partner": said["partner"], "examples": 5}
        if task == "compare":
            assert set(tensors) == {"setup", "response"}
            return Reply(-1, {**facts, "shared": self.shared}, {})
        if task == "answer":
            return Reply(-1, facts, {"response": tensors["request"].clone()})
        name = "request" if said["asks"] else "setup"
        return Reply(-1, facts, {name: torch.zeros(message_bytes(self.sizes[site]), dtype=torch.uint8)})

    def ask(self, task: str, take: OnReply, orders: Any) -> Outcome:
        outcome = Outcome()
        self.held = max(self.held, sum(v.numel() for _, tensors in orders.values() for v in tensors.values()))
        for site, (said, tensors) in orders.items():
            self.asked.append((task, {"site": site, **said}))
            answer = self.odd.get((site, task)) or self.reply(site, task, said, tensors)
            reason = answer if isinstance(answer, str) else take(site, answer)
            if reason is None:
                outcome.facts[site] = {}
                continue
            outcome.absent[site] = reason
            if reason == "silent":
                outcome.silent.append(site)
        return outcome


def compare(sites: Sites, **more: Any) -> Comparison:
    comparison = Comparison(sites.ask, **more)
    comparison.run(sorted(sites.sizes))
    return comparison


def test_every_pair_is_compared_and_no_more_is_held_than_allowed() -> None:
    sites = Sites({f"s{i}": 1000 + i for i in range(8)})
    memory = 3 * pair_bytes(1007, 1007)
    comparison = compare(sites, memory=memory)
    assert len(comparison.shared) == 28
    assert comparison.waves == 7 * 2, "four pairs of a matching, of which three fit"
    assert sites.held < memory
    assert not comparison._held
    assert compare(Sites(sites.sizes)).waves == 7


def test_a_site_learns_of_its_own_pair_alone() -> None:
    sites = Sites({"a": 30, "b": 40, "c": 50, "d": 60})
    compare(sites)
    for task, said in sites.asked:
        assert set(said) <= {"site", "partner", "elements", "asks"}
        assert task != "offer" or said["elements"] == sites.sizes[said["partner"]]


def test_who_is_silent_or_refuses_is_not_asked_again_and_who_errs_is() -> None:
    refusal = "E22 PolicyError: policy.knowledge_exact"
    for reason, times in (("silent", 1), (refusal, 1), ("E4 UpdateError", 3)):
        sites = Sites({"a": 30, "b": 40, "c": 50, "d": 60})
        sites.odd["a", "offer"] = reason
        comparison = compare(sites)
        assert sum(task == "offer" and said["site"] == "a" for task, said in sites.asked) == times
        assert {pair: why.split(":")[0] for pair, why in comparison.failed.items()} == {
            ("a", other): "a" for other in "bcd"
        }
        assert ("a" in comparison.without) == (times == 1)
        assert len(comparison.shared) == 3


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"state": "counted"},
        {"state": "counted", "elements": 30, "examples": 5},
        {"state": "counted", "elements": -1, "examples": 5, "key": KEY},
        {"state": "counted", "elements": 19, "examples": 5, "key": KEY},
        {"state": "counted", "elements": MOST + 1, "examples": 5, "key": KEY},
        {"state": "counted", "elements": 30.5, "examples": 5, "key": KEY},
        {"state": "counted", "elements": True, "examples": 5, "key": KEY},
        {"state": "counted", "elements": 30, "examples": 5, "key": "asthma"},
        {"state": "counted", "elements": 30, "examples": 5, "key": KEY, "triples": ["asthma"]},
        {"state": "few", "elements": 3},
        {"state": "asthma"},
    ],
)
def test_a_count_that_cannot_be_leaves_the_site_out(facts: dict[str, Any]) -> None:
    sites = Sites({"a": 30, "b": 40, "c": 50})
    sites.odd["a", "count"] = Reply(-1, facts, {})
    comparison = compare(sites)
    assert set(comparison.sizes) == {"b", "c"}
    assert comparison.without["a"]
    assert set(comparison.shared) == {("b", "c")}


def test_sites_of_another_key_are_left_out_and_two_alone_time_decides() -> None:
    sites = Sites({"a": 30, "b": 40, "c": 50})
    sites.keys["a"] = OTHER
    assert set(compare(sites).shared) == {("b", "c")}
    sites.odd["c", "count"] = Reply(-1, {"state": "none"}, {})
    comparison = compare(sites)
    assert (comparison.sizes, comparison.shared, set(comparison.without)) == ({}, {}, {"a", "b", "c"})
    assert "distances" not in comparison.report("abc")
    del sites.odd["c", "count"]
    sites.keys["c"] = "1" * 32
    with pytest.raises(RunError, match=r"no two sites have the same key.*a \(ffffffff\)"):
        compare(sites)


def test_who_has_another_vocabulary_is_named_and_stays_in() -> None:
    sites = Sites({"a": 30, "b": 40, "c": 50})
    sites.vocabularies = {"a": WORDS, "b": WORDS, "c": OTHERS}
    comparison = compare(sites)
    assert len(comparison.shared) == 3
    assert comparison.report("abc")["other_vocabulary"] == ["c"]
    sites.vocabularies["c"] = WORDS
    assert compare(sites).report("abc")["other_vocabulary"] == []


def test_sizes_that_no_graphs_have_show_in_the_smallest_eigenvalue() -> None:
    honest = Sites(dict.fromkeys("abcdefgh", 100), shared=10)
    assert compare(honest).report("abcdefgh")["smallest_eigenvalue"] > 0.9
    liar = Sites(honest.sizes, shared=10)
    liar.reply = lambda site, task, said, tensors: (  # type: ignore[method-assign]
        Reply(-1, {"partner": said["partner"], "examples": 5, "shared": 100}, {})
        if (site, task) == ("a", "compare")
        else Sites.reply(liar, site, task, said, tensors)
    )
    report = compare(liar).report("abcdefgh")
    assert report["distances"]["matrix"][0] == [0.0] * 8
    assert report["smallest_eigenvalue"] < -1
    assert "smallest_eigenvalue" not in compare(Sites({"a": 30})).report("a")


def test_one_site_or_none_is_compared_with_nobody() -> None:
    assert compare(Sites({"a": 30})).report(["a"])["pairs"] == []
    assert compare(Sites({})).report([])["waves"] == 0


def test_a_rule_knows_sites_by_sketches_or_by_exact_sizes_and_not_by_both() -> None:
    sketches, exact = make_rule("ddcs", {}), make_rule("ddcs", {"distances": "exact"})
    assert [bool(rule.capability(NeedsExactSizes)) for rule in (sketches, exact)] == [False, True]
    assert [wants_sketches(rule) for rule in (sketches, exact)] == [True, False]
    assert not make_rule("uniform_selection", {}).capability(NeedsExactSizes)
    assert not make_rule("weighted_mean", {}).capability(NeedsExactSizes)


# ---- the door of a site ------------------------------------------------------------------------------------


def door(tmp_path: Path, **rules: Any) -> Egress:
    policy = Policy(rules=PolicyConfig(**{"knowledge_exact": "allow", **rules}))
    egress = Egress(tmp_path / "egress.jsonl", "site-1", "id", "bfloat16", policy=policy)
    egress.declare({"w": ((2,), torch.float32)}, {})
    return egress


def message(size: int = 700) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("task", "facts", "tensors"),
    [
        ("offer", {"partner": "b", "examples": 5}, {}),
        ("offer", {"partner": "b", "examples": 5}, {"response": message()}),
        ("offer", {"partner": "b", "examples": 5}, {"request": message(), "setup": message()}),
        ("offer", {"partner": "b", "examples": 5}, {"request": message().float()}),
        ("offer", {"partner": "b", "examples": 5}, {"request": message()[None]}),
        ("offer", {"partner": "b", "examples": 5}, {"request": message(message_bytes(MOST) + 1)}),
        ("offer", {"examples": 5}, {"request": message()}),
        ("offer", {"partner": "asthma causes cough", "examples": 5}, {"request": message()}),
        ("offer", {"partner": "b", "examples": 5, "shared": 3}, {"request": message()}),
        ("offer", {"partner": "b"}, {"request": message()}),
        ("offer", {"partner": "b", "examples": -5}, {"request": message()}),
        ("answer", {"partner": "b", "examples": 5}, {"request": message()}),
        ("answer", {"partner": "b"}, {"response": message()}),
        ("compare", {"partner": "b", "examples": 5}, {}),
        ("compare", {"partner": "b", "examples": 5, "shared": -1}, {}),
        ("compare", {"partner": "b", "examples": 5, "shared": 3}, {"request": message()}),
        ("compare", {"partner": "b", "shared": 3}, {}),
        ("count", {"state": "counted", "elements": 30, "key": KEY}, {}),
        ("count", {"state": "many", "key": KEY}, {}),
        ("count", {"state": "many", "vocabulary": WORDS}, {}),
        ("count", {"state": "counted", "elements": 30, "examples": 5, "key": KEY, "vocabulary": "doid"}, {}),
    ],
)
def test_what_is_no_step_of_exact_comparison_stays(
    tmp_path: Path, task: str, facts: Any, tensors: Any
) -> None:
    egress = door(tmp_path)
    with pytest.raises(EgressError, match="not declared, so it stays here"):
        egress.send(task, -1, TaskResult(facts, tensors))
    assert read_ledger(egress.ledger).lines[0].event == "blocked"


def test_a_message_leaves_as_it_is_whatever_tensors_an_update_may_have(tmp_path: Path) -> None:
    egress = door(tmp_path, tensors=("adapter.*",))
    sent = egress.send("offer", -1, TaskResult({"partner": "b", "examples": 5}, {"request": message() + 7}))
    assert torch.equal(sent.tensors["request"], message() + 7)
    ledger = read_ledger(egress.ledger)
    assert ledger.problems == []
    assert (ledger.lines[0].bytes, ledger.lines[0].exact["bytes"]) == (700, 700)
    assert (ledger.lines[0].compression, ledger.lines[0].exact["partner"]) == (None, "b")


@pytest.mark.parametrize("task", ["count", "offer", "answer", "compare"])
def test_no_step_is_admitted_without_the_sites_yes(tmp_path: Path, task: str) -> None:
    options = {"method": "toy", "protections": [], "sites": 3}
    door(tmp_path).admit(task, -1, **options)
    with pytest.raises(PolicyError, match=r"policy.knowledge_exact: .* 'deny' unless a site allows it"):
        door(tmp_path, knowledge_exact="deny").admit(task, -1, **options)


@pytest.mark.parametrize(
    ("task", "facts", "tensors"),
    [
        ("count", {"state": "counted", "elements": 25, "key": KEY}, {}),
        ("offer", {"partner": "b"}, {"request": message()}),
        ("offer", {"partner": "b"}, {"setup": message()}),
        ("answer", {"partner": "b"}, {"response": message()}),
        ("compare", {"partner": "b", "shared": 7}, {}),
    ],
)
def test_no_step_leaves_that_is_about_too_few_texts(
    tmp_path: Path, task: str, facts: dict[str, Any], tensors: State
) -> None:
    door(tmp_path, min_examples=8).send(task, -1, TaskResult({**facts, "examples": 8}, tensors))
    with pytest.raises(PolicyError, match=r"policy.min_examples: .* is about fewer than 8 examples"):
        door(tmp_path, min_examples=8).send(task, -1, TaskResult({**facts, "examples": 7}, tensors))


def test_a_step_that_is_well_formed_has_no_problem() -> None:
    counted = {"state": "counted", "elements": 0, "examples": 0, "key": KEY, "seconds": 0.1}
    assert fact_problems("count", counted, "a") == []
    assert fact_problems("count", {"state": "no package", "seconds": 0.1}, "a") == []
    assert fact_problems("count", {**counted, "vocabulary": WORDS}, "a") == []
    assert fact_problems("compare", {"partner": "b", "examples": 5, "shared": 0}, "a") == []
    assert message_problems("offer", {"setup": message()}) == []
