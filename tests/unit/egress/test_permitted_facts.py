# SPDX-License-Identifier: Apache-2.0
"""Facts of a reply as they leave: rounded, without the metrics that stay, and nothing of too few examples."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.permitted_facts import DIGITS_SEALED, permitted_facts, rounded
from medflare.egress.policy import Policy, PolicyError
from medflare.wire.first_values import FACT as FIRST_VALUES
from medflare.wire.first_values import NORM

FINE = 0.123456789


def policy(**rules: Any) -> Policy:
    return Policy(rules=PolicyConfig.model_validate(rules))


@pytest.mark.parametrize(
    ("value", "leaving"),
    [(FINE, 0.123457), (123456789.0, 123457000.0), (-1e-9, -1e-9), (123456789, 123456789), ("x", "x")],
)
def test_a_number_has_six_significant_digits(value: Any, leaving: Any) -> None:
    assert rounded(value) == leaving
    assert type(rounded(value)) is type(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_left_for_the_server_to_refuse(value: float) -> None:
    assert str(rounded(value)) == str(value)


def test_metrics_are_rounded_and_whole_counts_are_not() -> None:
    metrics = {"loss": FINE, "whole": 16777217.0, "tokens": 123456789.0, "words": 0.123456789}
    facts = {"metrics": metrics, "examples": 10}
    out, withheld = permitted_facts(policy(metrics=["loss", "whole", "tokens", "words"]), facts)
    assert out == {
        "metrics": {"loss": 0.123457, "whole": 16777200.0, "tokens": 123456789.0, "words": 0.123457},
        "examples": 10,
    }
    assert withheld == 0
    coarse, _ = permitted_facts(policy(), facts, DIGITS_SEALED)
    assert coarse["metrics"]["loss"] == 0.1235
    assert facts["metrics"]["loss"] == FINE, "the site's own facts stay as they are"


def test_metrics_and_scores_that_stay_are_counted_together() -> None:
    estimate = {"value": FINE, "low": 0.1, "high": None}
    item = {"studies": 9, "metrics": {"bleu": estimate, "f1": estimate, "auc": estimate}}
    facts = {"metrics": {"loss": 1.0, "bleu": 1.0}, "evaluations": [item, item]}
    out, withheld = permitted_facts(policy(metrics=["bleu"]), facts)
    assert withheld == 1 + 2 + 2
    assert out["metrics"] == {"bleu": 1.0}
    kept = {"bleu": {"value": 0.123457, "low": 0.1, "high": None}}
    assert [part["metrics"] for part in out["evaluations"]] == [kept, kept]
    sealed, _ = permitted_facts(policy(), facts, DIGITS_SEALED)
    assert sealed["evaluations"][0]["metrics"]["f1"]["value"] == 0.1235


def test_why_a_score_was_skipped_leaves_without_folders_and_stays_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    skipped = {"a": "skipped: no java", "b": "skipped: /models/x", "c": "skipped: C:\\models", "d": "no"}
    item = {"studies": 9, "metrics": {}, "skipped_metrics": skipped}
    with caplog.at_level(logging.WARNING):
        out, _ = permitted_facts(policy(metrics=["a", "b", "c"]), {"evaluations": [item]})
    reasons = out["evaluations"][0]["skipped_metrics"]
    assert set(reasons) == {"a", "b", "c"}
    assert reasons["a"] == "skipped: no java"
    assert "models" not in reasons["b"] + reasons["c"]
    assert caplog.messages == ["b skipped: /models/x; c skipped: C:\\models"]


def test_first_values_have_a_rounded_norm_and_are_of_tensors_that_may_leave() -> None:
    entry = {"sha256": "0" * 64, NORM: FINE}
    facts = {FIRST_VALUES: {"lora_A": entry, "head": entry}}
    out, withheld = permitted_facts(policy(tensors=["lora_*"]), facts)
    assert out == {FIRST_VALUES: {"lora_A": {"sha256": "0" * 64, NORM: 0.123457}}}
    assert withheld == 0


FEW: dict[str, tuple[dict[str, Any], str]] = {
    "a sketch": ({"sketch": "AA==", "examples": 4}, "a sketch"),
    "a sketch of no text": ({"sketch": "AA=="}, "a sketch"),
    "the size of a graph": ({"elements": 900, "examples": 4}, "the size of a knowledge graph"),
    "a comparison": ({"partner": "b", "examples": 4}, "a comparison of knowledge graphs"),
    "an update": ({"examples": 4, "metrics": {}}, "an update"),
    "a split": ({"describe": {"examples": {"train": 90, "val": 4}}}, "the split 'val'"),
    "an evaluation": ({"metrics": {"loss": 1.0}, "counted": 4}, "an evaluation"),
    "a final test": ({"evaluations": [{"studies": 4, "metrics": {}}]}, "an evaluation"),
}


@pytest.mark.parametrize("case", FEW)
def test_nothing_leaves_that_is_about_too_few_examples(case: str) -> None:
    facts, what = FEW[case]
    with pytest.raises(PolicyError, match=f"policy.min_examples: {what} is about fewer than 5 examples"):
        permitted_facts(policy(min_examples=5), facts)
    if "examples" in facts:
        permitted_facts(policy(min_examples=4), facts)


def test_a_sketch_that_does_not_say_of_how_many_texts_it_is_stays() -> None:
    with pytest.raises(PolicyError, match="fewer than 1 examples"):
        permitted_facts(policy(), {"sketch": "AA=="})


def test_an_update_of_nothing_an_empty_split_and_a_measurement_of_nothing_leave() -> None:
    rules = policy(min_examples=5)
    facts = {"examples": 0, "describe": {"examples": {"val": 0}}, "metrics": {}, "counted": 0}
    out, _ = permitted_facts(rules, facts)
    assert out == {"examples": 0, "describe": {"examples": {"val": 0}}, "metrics": {}}
