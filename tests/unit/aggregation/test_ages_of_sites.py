# SPDX-License-Identifier: Apache-2.0
"""Rounds that sites wait, whether or not they are asked."""

from __future__ import annotations

import torch

from medflare.aggregation import make_rule
from medflare.core.update import Update

EXAMPLES = {"a": 40, "b": 30, "c": 15}


def test_a_site_that_is_not_asked_grows_older_too() -> None:
    rule = make_rule("ddcs", {"draws": 60, "age_bonus": 0.0})
    ages = []
    for number, asked in enumerate(("abc", "ac", "ac", "abc")):
        sites = rule.sample_clients(number, 7, EXAMPLES, list(asked))
        rule.begin({"w": torch.zeros(2)})
        for site in sites:
            rule.add(site, Update(delta={"w": torch.ones(2)}, examples=EXAMPLES[site]))
        rule.finish()
        ages.append(rule.report()["ages"])
    assert [seen["b"] for seen in ages] == [0, 1, 2, 0]


def test_in_a_lost_round_all_grow_older() -> None:
    rule = make_rule("ddcs", {"draws": 60})
    for number, asked in enumerate(("abc", "ac")):
        rule.sample_clients(number, 7, EXAMPLES, list(asked))
        rule.begin({"w": torch.zeros(2)})
        rule.abort_round()
    assert rule.report()["ages"] == {"a": 2, "b": 2, "c": 2}
