# SPDX-License-Identifier: Apache-2.0
"""What a rule says of its settings is what its constructor takes and refuses."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from medflare.aggregation import RULES, make_rule, rule_class
from medflare.aggregation.facts import Source, rule_facts, source_of
from medflare.core.errors import ConfigError

SETTINGS = [(rule, setting.name) for rule in sorted(RULES) for setting in rule_facts(rule).settings]


def bounds(rule: str, setting: str) -> list[tuple[str, float]]:
    """(ge | gt | le | lt, bound) of a setting's annotation."""
    hint = get_type_hints(rule_class(rule).__init__, include_extras=True)[setting]
    parts = [hint, *get_args(hint)]
    fields = [f for part in parts if get_origin(part) is Annotated for f in get_args(part)[1:]]
    return [
        (k, getattr(x, k))
        for f in fields
        for x in f.metadata
        for k in ("ge", "gt", "le", "lt")
        if hasattr(x, k)
    ]


BOUNDS = [(rule, setting, kind, at) for rule, setting in SETTINGS for kind, at in bounds(rule, setting)]


@pytest.mark.parametrize(("rule", "setting"), SETTINGS)
def test_every_setting_says_what_it_takes_and_does(rule: str, setting: str) -> None:
    facts = {item.name: item for item in rule_facts(rule).settings}[setting]
    assert facts.allowed
    assert facts.says.endswith(".")
    assert facts.default is not inspect.Parameter.empty


@pytest.mark.parametrize(("rule", "setting", "kind", "at"), BOUNDS)
def test_a_bound_that_is_said_is_kept(rule: str, setting: str, kind: str, at: float) -> None:
    beyond = {"ge": at - 1, "gt": at, "le": at + 1, "lt": at}[kind]
    with pytest.raises(ConfigError, match=f"{setting} is {beyond}"):
        make_rule(rule, {setting: beyond})
    within: Any = {"ge": at, "gt": at + 0.5, "le": at, "lt": at - 0.5}[kind]
    make_rule(rule, {setting: within})


@pytest.mark.parametrize("rule", sorted(RULES))
def test_words_that_are_said_to_be_allowed_are_and_no_other(rule: str) -> None:
    for setting in rule_facts(rule).settings:
        if isinstance(setting.default, str) and "," in setting.allowed:
            for word in setting.allowed.split(", "):
                make_rule(rule, {setting.name: word})
            with pytest.raises(ConfigError, match=setting.name):
                make_rule(rule, {setting.name: "other"})


def test_ranges_of_resolutions_are_spelled_out() -> None:
    found = source_of("Blanchard et al. 2017; paper 003; algorithms.md 5.4, 10; ML-1, VG-6 to VG-8")
    ids = ("ML-1", "VG-6", "VG-7", "VG-8")
    assert found == Source(paper="Blanchard et al. 2017; paper 003", sections="5.4, 10", ids=ids)


@pytest.mark.parametrize(
    ("rule", "streams"), [("fedavg", True), ("l_fedavg", True), ("krum", False), ("lora_stack", False)]
)
def test_what_keeps_every_update_says_so(rule: str, streams: bool) -> None:
    assert rule_facts(rule).streams is streams
