# SPDX-License-Identifier: Apache-2.0
"""The table of rules; what a rule says of its settings is what its constructor takes and refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from medflare.aggregation import RULES, make_rule, rule_class
from medflare.aggregation.facts import Citation, citation_of, rule_listing
from medflare.core.errors import ConfigError

SETTINGS = [(rule, setting.name) for rule in sorted(RULES) for setting in rule_listing(rule).settings]


def bounds(rule: str, setting: str) -> list[tuple[str, float]]:
    """(keyword of JSON schema, bound) of a setting."""
    field = rule_class(rule).Settings.model_json_schema()["properties"][setting]
    schemas = [field, *field.get("anyOf", ())]
    return [(key, part[key]) for part in schemas for key in BEYOND if key in part]


BEYOND = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
WITHIN = {"minimum": 0, "exclusiveMinimum": 0.5, "maximum": 0, "exclusiveMaximum": -0.5}
"""Keyword -> what to add to the bound for a value outside, and for one inside."""
ALIKE = {("power_of_choice", "clients"): ("candidates",), ("power_of_choice", "candidates"): ("clients",)}
"""Setting -> those that a value of it must be compared with, set to the same value."""
BOUNDS = [(rule, setting, kind, at) for rule, setting in SETTINGS for kind, at in bounds(rule, setting)]


@pytest.mark.parametrize(("rule", "setting"), SETTINGS)
def test_every_setting_says_what_it_takes_and_does(rule: str, setting: str) -> None:
    facts = {item.name: item for item in rule_listing(rule).settings}[setting]
    assert facts.allowed
    assert facts.says.endswith(".")


@pytest.mark.parametrize(("rule", "setting", "kind", "at"), BOUNDS)
def test_a_bound_that_is_said_is_kept(rule: str, setting: str, kind: str, at: float) -> None:
    beyond = at + BEYOND[kind]
    with pytest.raises(ConfigError, match=f"{setting} is {beyond}"):
        make_rule(rule, {setting: beyond})
    within = at + WITHIN[kind]
    make_rule(rule, {other: within for other in ALIKE.get((rule, setting), ())} | {setting: within})


WRONG: list[tuple[str, str, Any]] = [
    *(("krum", "f", -1), ("krum", "f", 1.5), ("multi_krum", "keep", 0), ("ddcs", "most_rank", 0)),
    *(("l_fedavg", "omega", 1.5), ("l_fedavg", "loss_weight", "both"), ("l_fedavg", "floor", 0.0)),
    *(("l_fedavg", "loss_source", "paper"), ("geometric_median", "weighting", "loss")),
    *(("fedadam", "lr", 0.0), ("fedadam", "eps", 0.0), ("fedyogi", "beta2", 1.0), ("fedavgm", "beta1", -0.1)),
    *(("influence", "mode", "both"), ("influence", "temperature", 0), ("influence", "clip", -1)),
    *(("influence", "clip", 700), ("ddcs", "mode", "both"), ("ddcs", "distances", "guessed")),
    *(("temporal", "visits", 0), ("temporal", "alpha", 1.5), ("temporal", "alpha", math.nan)),
    *(("temporal", "lr", -1.0), ("temporal", "seed", -1), ("uniform_selection", "mu", -1.0)),
    ("weighted_mean", "weighting", "loss"),
]


@pytest.mark.parametrize(("rule", "setting", "value"), WRONG, ids=str)
def test_a_setting_out_of_range_is_named_with_what_is_expected(rule: str, setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        make_rule(rule, {setting: value})
    assert f"'{rule}' cannot use its rule_settings: {setting} is {value!r}" in str(error.value)
    assert "expected" in str(error.value)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_words_that_are_said_to_be_allowed_are_and_no_other(rule: str) -> None:
    for setting in rule_listing(rule).settings:
        if isinstance(setting.default, str) and "," in setting.allowed:
            for word in setting.allowed.split(", "):
                make_rule(rule, {setting.name: word})
            with pytest.raises(ConfigError, match=setting.name):
                make_rule(rule, {setting.name: "other"})


def test_a_listing_is_what_the_rule_says_of_itself() -> None:
    for name in RULES:
        listing, facts = rule_listing(name), rule_class(name).facts
        assert (listing.name, listing.needs, listing.instead) == (name, facts.needs, facts.instead)
        assert (listing.sum_with, listing.streams) == (dict(facts.sum_with), facts.streams)
        assert (listing.summary, listing.source) == (facts.summary, citation_of(facts.source))
        assert {item.name: item.default for item in listing.settings} == make_rule(
            name, {}
        ).settings.model_dump(mode="json")
        assert not any("  " in item.says or "\n" in item.says for item in listing.settings)


def test_ranges_of_resolutions_are_spelled_out() -> None:
    citation = citation_of("Blanchard et al. 2017; paper 003; ML-1, VG-6 to VG-8")
    ids = ("ML-1", "VG-6", "VG-7", "VG-8")
    assert citation == Citation(paper="Blanchard et al. 2017; paper 003", ids=ids)


@pytest.mark.parametrize(
    ("rule", "streams"), [("fedavg", True), ("l_fedavg", True), ("krum", False), ("lora_stack", False)]
)
def test_what_keeps_every_update_says_so(rule: str, streams: bool) -> None:
    assert rule_listing(rule).streams is streams


def test_an_unknown_rule_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'fedsum' does not exist. Rules: .*weighted_mean"):
        make_rule("fedsum", {})


def test_a_renamed_rule_is_answered_with_its_new_name() -> None:
    with pytest.raises(ConfigError, match="'factors' is now called 'weighted_mean'"):
        make_rule("factors", {})


def test_a_setting_that_the_rule_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'weighted_mean' cannot use its rule_settings: .*weights"):
        make_rule("weighted_mean", {"weights": "examples"})
