# SPDX-License-Identifier: Apache-2.0
"""The table is the only way from a job to a rule, and every rule in it can be listed."""

from __future__ import annotations

import pytest

from medflare.aggregation import RULES, make_rule
from medflare.aggregation.capabilities import round_hints
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_says_what_it_does_where_it_is_from_and_what_it_needs(name: str) -> None:
    rule = make_rule(name, {})
    assert rule.facts.summary.endswith(".")
    assert rule.facts.source
    assert rule.facts.needs in ("sum", "individual")
    assert isinstance(round_hints(rule), RoundHints)


def test_an_unknown_rule_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'fedsum' does not exist. Rules: .*weighted_mean"):
        make_rule("fedsum", {})


@pytest.mark.parametrize("settings", [{"weighting": "loss"}, {"weights": "examples"}])
def test_settings_that_a_rule_does_not_take_are_named(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"'weighted_mean' cannot use its rule_settings: .*(loss|weights)"):
        make_rule("weighted_mean", settings)


def test_a_renamed_rule_is_answered_with_its_new_name() -> None:
    with pytest.raises(ConfigError, match="'factors' is now called 'weighted_mean'"):
        make_rule("factors", {})
