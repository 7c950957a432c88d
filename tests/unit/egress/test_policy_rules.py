# SPDX-License-Identifier: Apache-2.0
"""Each rule of a hospital's policy by itself: the most it lets through, and the least that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy, PolicyError

REQUEST: dict[str, Any] = {
    "job": "fedmrg-3",
    "method": "fedmrg",
    "protections": (),
    "sites": 3,
    "partners": ("b", "c"),
    "rounds": 5,
    "limit": None,
    "split": "val",
    "private": False,
}
DP = {"epsilon": 8.0, "delta": 1e-3}

ADMITTED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "jobs": (
        {"jobs": ["fedmrg*", "ddcs"]},
        {"job": "fedmrg"},
        {"job": "fedtar"},
        "policy.jobs: job 'fedtar' is not admitted; allowed: fedmrg*, ddcs",
    ),
    "methods": (
        {"methods": ["fedmrg"]},
        {},
        {"method": "Fedmrg"},
        "policy.methods: method 'Fedmrg' is not admitted; allowed: fedmrg",
    ),
    "require": (
        {"require": ["mask|he"]},
        {"protections": ("he",)},
        {"protections": ("other", "noise")},
        "policy.require: updates must have the protection mask or he, they have noise and other",
    ),
    "noise of a site": (
        {"min_site_noise": 0.5},
        {"protections": ("mask",)},
        {"protections": ("he",)},
        "policy.require: updates must have the protection mask, they have he",
    ),
    "min_sites": (
        {"min_sites": 4},
        {"sites": 4},
        {"sites": 3},
        "policy.min_sites: 3 sites take part, at least 4 must",
    ),
    "partners": (
        {"partners": ["b", "c"]},
        {},
        {"partners": ("e", "b", "d")},
        "policy.partners: d, e would take part; allowed: b, c",
    ),
    "no partners": (
        {"partners": []},
        {"partners": ()},
        {"partners": ("b",)},
        "policy.partners: b would take part; allowed: nothing",
    ),
    "most_rounds": (
        {"most_rounds": 5},
        {"rounds": 5},
        {"rounds": 6},
        "policy.most_rounds: the run has 6 rounds, at most 5",
    ),
    "min_examples": (
        {"min_examples": 20},
        {"limit": 20},
        {"limit": 19},
        "policy.min_examples: an evaluation is about fewer than 20 examples",
    ),
    "dp": (
        {"dp": DP},
        {"private": True},
        {"private": False},
        "policy.dp: jobs train with differential privacy here, and this one does not: set settings.dp",
    ),
    "train_losses": (
        {},
        {"split": "test"},
        {"split": "train"},
        "policy.train_losses: losses of training examples, which rule 'drfa' probes, stay here",
    ),
    "train_losses of a private job": (
        {"train_losses": True},
        {"split": "train"},
        {"split": "train", "private": True},
        "policy.dp: losses of training patients have no noise",
    ),
}


def policy(**rules: Any) -> Policy:
    return Policy(rules=PolicyConfig.model_validate(rules), file=Path("/site/local/site.yaml"))


def refusal(check: Callable[[], None]) -> str:
    """The text of a refusal, which names the file without its folder."""
    with pytest.raises(PolicyError) as caught:
        check()
    text = str(caught.value)
    assert text.startswith("refused by this site's site.yaml: ")
    assert "/site" not in text
    return text.removeprefix("refused by this site's site.yaml: ")


@pytest.mark.parametrize("case", ADMITTED)
def test_what_a_rule_lets_through_and_what_it_refuses(case: str) -> None:
    rules, allowed, refused, text = ADMITTED[case]
    policy(**rules).admit(**REQUEST | allowed)
    assert refusal(lambda: policy(**rules).admit(**REQUEST | refused)).startswith(text)


def test_all_rules_that_refuse_are_named() -> None:
    rules = policy(jobs=["x"], methods=["y"], min_sites=9, min_examples=5)
    text = refusal(lambda: rules.admit(**REQUEST | {"limit": 4, "split": "train"}))
    named = [part.split(":")[0] for part in text.removeprefix("policy.").split("; policy.")]
    assert named == ["jobs", "methods", "min_sites", "min_examples", "train_losses"]


def test_without_rules_of_its_own_a_site_measures_all_but_training_examples() -> None:
    for split in ("val", "test", None):
        policy().admit(**REQUEST | {"split": split})
        policy(dp=DP).admit(**REQUEST | {"split": split, "private": True})
    assert "losses of training examples" in refusal(lambda: policy().admit(**REQUEST | {"split": "train"}))


def test_rounds_are_counted_by_the_site() -> None:
    limited = policy(most_rounds=2)
    for before in (0, 1):
        limited.rounds_opened(before)
    assert "policy.most_rounds: this site has counted 2 rounds in this job, at most 2" in refusal(
        lambda: limited.rounds_opened(2)
    )
    policy().rounds_opened(10**6)


@pytest.mark.parametrize(
    ("allowed", "kinds", "beyond"),
    [
        ("none", [], None),
        ("none", ["none"], None),
        ("none", ["prototypes"], "prototypes"),
        ("none", ["raw", "prototypes"], "prototypes and raw"),
        ("prototypes", ["none", "prototypes"], None),
        ("prototypes", ["raw"], "raw"),
        ("raw", ["none", "prototypes", "raw"], None),
    ],
)
def test_features_of_images_leave_as_far_as_the_hospital_allows(
    allowed: str, kinds: list[Any], beyond: str | None
) -> None:
    rules = policy(features=allowed)
    if beyond is None:
        rules.features(kinds)
        return
    text = refusal(lambda: rules.features(kinds))
    assert text.startswith("policy.features: features of images stay here (")
    assert f"({beyond} asked for, {allowed} allowed)" in text
    assert f"'features: {beyond.split()[-1]}' under 'policy'" in text


def test_prototypes_are_of_enough_images_unless_single_ones_may_leave() -> None:
    policy(min_prototype=16).prototypes(16)
    assert "policy.min_prototype: a prototype is of fewer than 16 images" in refusal(
        lambda: policy(min_prototype=16).prototypes(15.9)
    )
    policy(features="raw").prototypes(1)


def test_sums_of_metrics_need_the_protections_that_updates_need() -> None:
    policy(require=["mask"]).numbers(["mask"])
    assert "they have none" in refusal(lambda: policy(require=["mask"]).numbers([]))


def test_tensors_that_may_not_leave_are_named_three_of_them() -> None:
    rules = policy(tensors=["lora_A.*"])
    rules.update(["lora_A.q", "lora_A.v"], ())
    rules.first_values(["lora_A.q"])
    three = ["d", "b", "c"]
    assert "policy.tensors: 'b', 'c', 'd' may not leave; allowed: lora_A.*" in refusal(
        lambda: rules.update(["lora_A.q", *three], ())
    )
    five = [*three, "e", "f"]
    assert "'b', 'c', 'd' and 2 more may not leave" in refusal(lambda: rules.first_values(five))


def test_bytes_of_a_round_are_added() -> None:
    rules = policy(max_bytes_per_round="1 kB")
    rules.volume(400, 600)
    assert (
        "policy.max_bytes_per_round: 601 bytes after 400 in the same round; at most 1,000 may leave"
        in refusal(lambda: rules.volume(400, 601))
    )


def test_as_many_examples_as_the_rule_says_are_enough() -> None:
    rules = policy(min_examples=5)
    assert (rules.is_enough(4), rules.is_enough(5)) == (False, True)
    rules.counted("an update", 5)
    assert "an update is about fewer than 5 examples" in refusal(lambda: rules.counted("an update", 4))


@pytest.mark.parametrize(
    ("allowed", "leaving"), [("all", ["a", "ab", "n"]), ("none", []), (["a*"], ["a", "ab"]), ([], [])]
)
def test_metrics_leave_as_the_rule_says(allowed: Any, leaving: list[str]) -> None:
    values = {"a": 1.0, "ab": 2.0, "n": 3.0}
    assert list(policy(metrics=allowed).metrics(values)) == leaving


@pytest.mark.parametrize(
    ("outside", "task", "kept"),
    [
        ((), "evaluate", []),
        ((), "finish", []),
        (("validation",), "evaluate", ["bleu"]),
        (("validation",), "finish", []),
        (("test",), "finish", ["bleu"]),
        (("test", "validation"), "fit", []),
    ],
)
def test_of_a_private_job_what_is_measured_leaves_where_the_hospital_put_it_outside_epsilon(
    outside: tuple[str, ...], task: str, kept: list[str]
) -> None:
    rules = policy(dp=DP | {"outside": outside})
    assert list(rules.within_privacy(True, task).metrics({"bleu": 1.0})) == kept
    assert list(rules.within_privacy(False, task).metrics({"bleu": 1.0})) == ["bleu"]
    nowhere = policy().within_privacy(True, task)
    assert list(nowhere.metrics({"bleu": 1.0})) == []


def test_rules_have_a_digest_whatever_their_order() -> None:
    assert policy(jobs=["a"], min_sites=2).digest() == policy(min_sites=2, jobs=["a"]).digest()
    digests = {policy(**rules).digest() for rules in ({}, {"jobs": ["a"]}, {"jobs": ["b"]}, {"min_sites": 2})}
    assert len(digests) == 4
    assert policy().digest() == Policy().digest()
