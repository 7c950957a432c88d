# SPDX-License-Identifier: Apache-2.0
"""DDCS's step on products of LoRA factors (DD-4): exact, unbiased for the product, compressed on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.aggregation.lora import LoraPair, best_of_rank
from medflare.core.errors import ConfigError
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.recipes.combinations import problems
from medflare.selection.sampled_mean import SampledMean

STEM = "adapter.layer.q"
A, B = ".lora_A.weight", ".lora_B.weight"
SITES = ["a", "b", "c", "d"]
EXAMPLES = {"a": 10, "b": 20, "c": 30, "d": 40}
SHARES = {site: count / 100 for site, count in EXAMPLES.items()}
OUT, IN, RANK = 6, 5, 2


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def broadcast(b: float = 0.0, merged: bool = False) -> State:
    tensors = {STEM + A: drawn(0, RANK, IN), STEM + B: b * drawn(1, OUT, RANK), "head.weight": drawn(2, 3)}
    if merged:
        tensors |= {"merged.layer.q" + A: drawn(3, 3, IN), "merged.layer.q" + B: drawn(4, OUT, 3)}
    return tensors


def update(site: str) -> Update:
    seed = 10 * SITES.index(site) + 100
    delta = {
        STEM + A: drawn(seed, RANK, IN),
        STEM + B: drawn(seed + 1, OUT, RANK),
        "head.weight": drawn(seed + 2, 3),
    }
    return Update(delta=delta, examples=EXAMPLES[site])


def product(state: State) -> Tensor:
    """What the sites compute with, beside the base weights."""
    merged_product = state[STEM + B] @ state[STEM + A]
    if "merged.layer.q" + A in state:
        merged_product = merged_product + state["merged.layer.q" + B] @ state["merged.layer.q" + A]
    return merged_product


def own_product(state: State, site: str) -> Tensor:
    delta = update(site).delta
    return (state[STEM + B] + delta[STEM + B]) @ (state[STEM + A] + delta[STEM + A]) - state[
        STEM + B
    ] @ state[STEM + A]


def made(name: str = "uniform_selection", **settings: Any) -> SampledMean:
    rule = make_rule(name, {"mode": "product_restart", **settings})
    assert isinstance(rule, SampledMean)
    return rule


def one_round(rule: SampledMean, state: State, number: int = 1, vanish: tuple[str, ...] = ()) -> State:
    sites = rule.sample_clients(number, 0, EXAMPLES, SITES)
    rule.begin(state)
    for site in sites:
        if site not in vanish:
            rule.add(site, update(site))
    return rule.finish()


@pytest.mark.parametrize("name", ["ddcs", "uniform_selection"])
@pytest.mark.parametrize(("b", "merged"), [(0.0, False), (0.0, True), (1.0, False), (1.0, True)])
def test_the_step_is_the_weighted_sum_of_products(name: str, b: float, merged: bool) -> None:
    rule, state = made(name), broadcast(b, merged)
    new = one_round(rule, state)
    weights = rule.report()["importance"]
    expected = product(state) + sum(w * own_product(state, site) for site, w in weights.items())
    torch.testing.assert_close(product(new), expected)
    torch.testing.assert_close(new[STEM + A], state[STEM + A])
    assert not new[STEM + B].any()


def test_other_tensors_step_by_their_differences() -> None:
    rule, state = made(), broadcast()
    new = one_round(rule, state)
    weights = rule.report()["importance"]
    expected = state["head.weight"] + sum(
        w * update(site).delta["head.weight"] for site, w in weights.items()
    )
    torch.testing.assert_close(new["head.weight"], expected)


def test_its_expectation_over_draws_is_the_sum_by_data_and_that_of_factors_is_not() -> None:
    state, wanted = broadcast(), sum(d * own_product(broadcast(), site) for site, d in SHARES.items())
    assert isinstance(wanted, Tensor)
    means, errors = {}, {}
    for mode in ("product_restart", "factor_delta"):
        rule = make_rule("uniform_selection", {"mode": mode, "draws": 2})
        assert isinstance(rule, SampledMean)
        steps = torch.stack([product(one_round(rule, state, n)) - product(state) for n in range(1, 3001)])
        means[mode], errors[mode] = steps.mean(0), steps.std(0) / np.sqrt(len(steps))
    far = {mode: ((means[mode] - wanted) / errors[mode]).abs() for mode in means}
    assert far["product_restart"].max() < 4.5
    assert far["factor_delta"].max() > 10


def test_a_site_that_vanishes_makes_the_step_smaller() -> None:
    rule, state = made(draws=4), broadcast()
    gone = rule.sample_clients(1, 0, EXAMPLES, SITES)[0]
    new = one_round(rule, state, vanish=(gone,))
    weights = rule.report()["importance"]
    expected = sum(w * own_product(state, site) for site, w in weights.items() if site != gone)
    torch.testing.assert_close(product(new), expected)
    assert rule.report()["vanished"] == [gone]


def test_a_round_without_a_draw_weighs_by_data() -> None:
    rule, state = made(), broadcast()
    rule.begin(state)
    for site in SITES:
        rule.add(site, update(site))
    expected = sum(d * own_product(state, site) for site, d in SHARES.items())
    torch.testing.assert_close(product(rule.finish()), expected)


def test_the_rank_grows_by_every_site_up_to_the_full_one_and_loses_nothing() -> None:
    rule, state = made(draws=3), broadcast()
    ranks = []
    for number in range(1, 5):
        before = state
        state = one_round(rule, state, number)
        weights = rule.report()["importance"]
        expected = product(before) + sum(w * own_product(before, site) for site, w in weights.items())
        torch.testing.assert_close(product(state), expected)
        ranks.append(state["merged.layer.q" + A].shape[0])
        assert rule.report()["checks"]["truncation"] == pytest.approx(0.0, abs=1e-12)
    assert ranks[-1] == min(IN, OUT)


def test_a_rank_cap_gives_the_nearest_product_of_that_rank_and_says_what_was_lost() -> None:
    state = broadcast()
    exact, capped = made(draws=5), made(draws=5, most_rank=2)
    whole, cut = one_round(exact, state), one_round(capped, state)
    assert cut["merged.layer.q" + A].shape == (2, IN)
    best, _ = best_of_rank(LoraPair(whole["merged.layer.q" + A], whole["merged.layer.q" + B]), 2)
    torch.testing.assert_close(product(cut), best.b @ best.a)
    lost = (product(whole) - product(cut)).norm() / product(whole).norm()
    assert capped.report()["checks"]["truncation"] == pytest.approx(float(lost))
    assert capped.report()["checks"]["merged_rank"] == 2
    assert lost > 0.01


def test_it_needs_each_update_and_says_what_needs_none() -> None:
    rule = made("ddcs")
    assert (rule.facts.needs, rule.facts.sharing, rule.facts.extra_tensors) == (
        "individual",
        ("stack",),
        ("merged.",),
    )
    assert (make_rule("ddcs", {}).facts.needs, make_rule("ddcs", rule.facts.sum_with).facts.needs) == (
        "sum",
        "sum",
    )


@pytest.mark.parametrize("protection", ["masking", "he"])
def test_under_protection_it_is_refused_and_the_other_mode_named(protection: Any) -> None:
    mode = {"mode": "product_restart"}
    shared = {"variant": "stack"}
    reasons = problems("ddcs", "question_answering", shared, "float32", protection, rule_settings=mode)
    assert any('"mode": "factor_delta"' in text for text in reasons)
    assert problems("ddcs", "question_answering", shared, "float32", rule_settings=mode) == []


def test_factors_that_travel_otherwise_are_refused() -> None:
    (said,) = problems("ddcs", "question_answering", {}, "float32", rule_settings={"mode": "product_restart"})
    assert "Set settings.sharing to 'stack'" in said
    (said,) = problems("ddcs", "question_answering", {"variant": "stack"}, "float32")
    assert 'Use rule_settings {"mode": "product_restart"}' in said
    with pytest.raises(ConfigError, match="no LoRA factors are among"):
        made().begin({"head.weight": drawn(2, 3)})
