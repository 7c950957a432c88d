# SPDX-License-Identifier: Apache-2.0
"""The table is the only way from a job to a rule, and every rule in it can be listed."""

from __future__ import annotations

import pytest

from medflare.aggregation import RULES, make_rule, rule_class
from medflare.aggregation.capabilities import round_hints
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_says_what_it_does_where_it_is_from_and_what_it_needs(name: str) -> None:
    rule = make_rule(name, {})
    assert rule.summary.endswith(".")
    assert rule.source
    assert rule.needs in ("sum", "individual")
    assert isinstance(round_hints(rule), RoundHints)


def test_an_unknown_rule_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'fedsum' does not exist. Rules: .*weighted_mean"):
        make_rule("fedsum", {})


@pytest.mark.parametrize("settings", [{"weighting": "loss"}, {"weights": "examples"}])
def test_settings_that_a_rule_does_not_take_are_named(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"'weighted_mean' cannot use its rule_settings: .*(loss|weights)"):
        make_rule("weighted_mean", settings)


def test_factors_is_fedavg_under_its_name_for_lora() -> None:
    assert rule_class("factors") is WeightedMean
