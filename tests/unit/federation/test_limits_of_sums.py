# SPDX-License-Identifier: Apache-2.0
"""Limits on the sums beside updates: sites of very different size pass, what is out of proportion not."""

from __future__ import annotations

import pytest
import torch

from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.update_limits import UpdateLimits
from medflare.selection.sampled_mean import WEIGHT

STATE: State = {"w": torch.ones(4)}
SIZES = {"a": 50, "b": 60, "c": 70}


def update(size: float) -> Update:
    """An update of ordinary length with sums of this norm."""
    sums = {"total": torch.tensor([size], dtype=torch.float64)}
    return Update(delta={"w": torch.full((4,), 0.1)}, examples=1, sums=sums)


def after(sums: dict[str, float], sizes: dict[str, int], **settings: float | None) -> dict[str, str | None]:
    """Site -> why its update is refused in a first round with sums of these norms, if it is."""
    limits = UpdateLimits(**settings)
    limits.begin(STATE)
    problems = {site: limits.problem(site, update(sums[site]), sizes[site]) for site in sums}
    return {
        site: problem or (limits.refused(site) if limits.is_unusual(site) else None)
        for site, problem in problems.items()
    }


@pytest.mark.parametrize("grows", [True, False], ids=["with the examples", "not with the examples"])
def test_a_site_five_thousand_times_as_large_is_none_that_lies(grows: bool) -> None:
    sizes = {**SIZES, "d": 5000 * 60}
    sums = {site: 0.5 * (n if grows else 1) for site, n in sizes.items()}
    assert after(sums, sizes) == dict.fromkeys(sizes)


def test_sums_a_hundred_times_the_others_are_refused_and_named() -> None:
    refused = after({"a": 1.0, "b": 1.0, "c": 150.0}, dict.fromkeys(SIZES, 50))
    assert refused["a"] is None
    assert refused["b"] is None
    assert str(refused["c"]).startswith("sums: norm 21.2, more than 100 times this round's median 0.141")


def test_just_below_the_ratio_they_pass_and_without_one_all_do() -> None:
    sizes = dict.fromkeys(SIZES, 50)
    assert after({"a": 1.0, "b": 1.0, "c": 99.0}, sizes) == dict.fromkeys(SIZES)
    assert after({"a": 1.0, "b": 1.0, "c": 1e9}, sizes, max_ratio=None) == dict.fromkeys(SIZES)


def test_with_two_sites_the_model_and_the_examples_are_the_measure() -> None:
    sizes = {"a": 50, "b": 50}
    assert after({"a": 1.0, "b": 9e4}, sizes)["b"] is None
    found = after({"a": 1.0, "b": 1.1e5}, sizes)["b"]
    assert str(found).startswith("sums: norm 1.56e+04, more than 7071.07 times the model's own (2)")


def test_what_was_accepted_is_the_measure_of_later_rounds() -> None:
    limits = UpdateLimits()
    for number in range(2):
        limits.begin(STATE)
        for site in SIZES:
            assert limits.problem(site, update(1.0), 1) is None
            assert limits.is_unusual(site) is (number == 0)
        for site in SIZES:
            limits.accept(site)
    limits.begin(STATE)
    assert limits.problem("a", update(150.0), 1) is None
    assert limits.is_unusual("a")


def test_a_site_that_joins_late_begins_with_the_sums_that_others_began_with() -> None:
    limits = UpdateLimits()
    for size in (1.0, 1e-2, 1e-4):
        limits.begin(STATE)
        for site in ("a", "b"):
            assert limits.problem(site, update(size), 1) is None
            assert limits.refused(site) is None
            limits.accept(site)
    limits.begin(STATE)
    found = [limits.problem(site, update(size), 1) for site, size in {"a": 1e-4, "b": 1e-4, "c": 1.0}.items()]
    assert found == [None] * 3
    assert limits.refused("c") is None
    assert limits.problem("c", update(150.0), 1) is None
    assert limits.refused("c") is not None


def test_an_importance_weight_is_the_servers_own_word_and_is_held_against_nothing() -> None:
    aggregator = ValidatingAggregator(rule="ddcs")
    spec = {"w": ((4,), torch.float32)}
    aggregator.expect(spec, {WEIGHT: ((), torch.float32)}, {"a": 5000, "b": 4000, "c": 10})
    aggregator.begin(0, STATE, ["a", "b", "c"])
    for site, weight in {"a": 0.01, "b": 0.01, "c": 5.0}.items():
        tensors = {"w": torch.full((4,), 0.1), f"sum:{WEIGHT}": torch.tensor(weight)}
        assert aggregator.accept(site, 0, {"examples": 10, "metrics": {}}, tensors) is None
    assert aggregator.flush() == {}
