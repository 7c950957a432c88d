# SPDX-License-Identifier: Apache-2.0
"""Averaging LoRA updates: what is exact, what is best of its rank, what it costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.lora import (
    FreezeA,
    LoraPair,
    LoraProductSvd,
    LoraStack,
    best_of_rank,
    stacked,
    stems,
    truncation_error,
)
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError
from medflare.core.tensors import State
from medflare.core.update import Update

STEM = "adapter.base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{STEM}.lora_A.weight", f"{STEM}.lora_B.weight"
MERGED_A, MERGED_B = (f"merged.{name.removeprefix('adapter.')}" for name in (A, B))
D_OUT, D_IN, RANK = 9, 7, 2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fresh(d_out: int = D_OUT, d_in: int = D_IN, rank: int = RANK) -> State:
    """What PEFT starts from: a random A and B = 0; and a tensor that is no factor."""
    return {A: normal(rank, d_in, seed=99), B: normal(d_out, rank) * 0, "norm.weight": normal(3, seed=98)}


def trained(state: State, seed: int, examples: int = 10) -> Update:
    delta = {n: normal(*v.shape, seed=100 * seed + i) for i, (n, v) in enumerate(sorted(state.items()))}
    return Update(delta=delta, examples=examples)


def aggregate(rule: AggregationRule, state: State, updates: list[Update]) -> State:
    rule.begin(state)
    for i, update in enumerate(updates):
        rule.add(f"s{i}", update)
    return rule.finish()


def product(state: State) -> Tensor:
    """What a site computes with beside W0, scale left out."""
    factor_product = state[B] @ state[A]
    return factor_product + state[MERGED_B] @ state[MERGED_A] if MERGED_A in state else factor_product


def mean_product(state: State, updates: list[Update]) -> Tensor:
    """Σ w_k B_k A_k the slow way."""
    total = sum(u.examples for u in updates)
    return sum(u.examples / total * (state[B] + u.delta[B]) @ (state[A] + u.delta[A]) for u in updates)  # type: ignore[return-value]


SITES = [(1, 10), (2, 20), (3, 50)]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_vector_8_factor_averaging_errs_by_a_weighted_covariance(examples: list[int], seed: int) -> None:
    state = fresh()
    updates = [trained(state, seed + i, n) for i, n in enumerate(examples)]
    new = aggregate(WeightedMean(), state, updates)
    gap = mean_product(state, updates) - product(new)
    w = [n / sum(examples) for n in examples]
    pairs = sum(
        w[k]
        * w[j]
        * (updates[k].delta[B] - updates[j].delta[B])
        @ (updates[k].delta[A] - updates[j].delta[A])
        for k in range(len(w))
        for j in range(k + 1, len(w))
    )
    assert float((gap - pairs).abs().max()) < 1e-12


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_stacking_is_exact_over_rounds(examples: list[int], seed: int) -> None:
    rule, state, expected = LoraStack(), fresh(), torch.zeros(D_OUT, D_IN, dtype=torch.float64)
    for number in range(3):
        shared = {name: value for name, value in state.items() if not name.startswith("merged.")}
        updates = [trained(shared, seed + 10 * number + i, n) for i, n in enumerate(examples)]
        expected = expected + mean_product(shared, updates)
        state = aggregate(rule, state, updates)
        assert torch.allclose(product(state), expected, atol=1e-11)
        assert torch.equal(state[A], fresh()[A]), "sites restart from the A that was broadcast"
        assert not state[B].any()
        assert state[MERGED_A].shape[0] <= min(D_IN, D_OUT)


def test_stacking_is_exact_where_the_broadcast_pair_was_not_fresh() -> None:
    state = fresh() | {B: normal(D_OUT, RANK, seed=5)}
    updates = [trained(state, seed, n) for seed, n in SITES]
    rule = LoraStack()
    new = aggregate(rule, state, updates)
    assert torch.allclose(product(new), mean_product(state, updates), atol=1e-12)
    moved = torch.linalg.norm(mean_product(state, updates) - product(state))
    assert rule.report()["checks"]["update_norm"] == pytest.approx(float(moved))


def test_stacked_factors_are_side_by_side_until_the_rank_is_full() -> None:
    rule, state = LoraStack(), fresh()
    new = aggregate(rule, state, [trained(state, seed, n) for seed, n in SITES])
    assert (new[MERGED_A].shape, new[MERGED_B].shape) == ((3 * RANK, D_IN), (D_OUT, 3 * RANK))
    again = aggregate(rule, new, [trained(state, seed + 5, n) for seed, n in SITES])
    assert (again[MERGED_A].shape, again[MERGED_B].shape) == ((D_IN, D_IN), (D_OUT, D_IN))
    assert rule.report()["checks"]["merged_rank"] == D_IN
    assert all(name.startswith(rule.facts.extra_tensors) for name in set(again) - set(state))


def test_factors_that_fill_the_rank_exactly_stay_side_by_side() -> None:
    state = fresh(d_out=9, d_in=6)
    updates = [trained(state, seed, n) for seed, n in SITES]
    new = aggregate(LoraStack(), state, updates)
    assert torch.equal(new[MERGED_A], torch.cat([state[A] + u.delta[A] for u in updates]))


def test_checks_of_a_round_are_over_all_pairs() -> None:
    other = {
        name.replace("q_proj", "v_proj"): value for name, value in fresh(d_out=4, d_in=5, rank=3).items()
    }
    state = {**fresh(), **other}
    updates = [trained(state, seed, n) for seed, n in SITES[:2]]
    rule = LoraStack()
    new = aggregate(rule, state, updates)
    pairs = [stem.removesuffix(".lora_A.weight") for stem in state if stem.endswith(".lora_A.weight")]
    merged = [f"merged.{stem.removeprefix('adapter.')}" for stem in pairs]
    norms = [float((new[f"{m}.lora_B.weight"] @ new[f"{m}.lora_A.weight"]).norm()) for m in merged]
    assert rule.report()["checks"] == {"update_norm": pytest.approx(np.hypot(*norms)), "merged_rank": 4.0}
    svd = LoraProductSvd()
    aggregate(svd, state, updates)
    errors = svd.report()["truncation"]
    assert set(errors) == set(pairs)
    assert svd.report()["checks"] == {"truncation": max(errors.values())}


@pytest.mark.parametrize(
    ("rule", "checks"),
    [(LoraStack(), {"update_norm": 0.0, "merged_rank": 0.0}), (LoraProductSvd(), {"truncation": 0.0})],
)
def test_without_pairs_the_rest_is_averaged_and_nothing_is_lost(
    rule: AggregationRule, checks: dict[str, float]
) -> None:
    state = {"norm.weight": normal(3, seed=98)}
    update = trained(state, 1)
    new = aggregate(rule, state, [update])
    assert torch.allclose(new["norm.weight"], state["norm.weight"] + update.delta["norm.weight"])
    assert rule.report()["checks"] == checks


def test_the_truncation_error_is_relative_however_small_the_product() -> None:
    assert truncation_error(torch.tensor([4e-9, 3e-9]), 1) == pytest.approx(0.6)
    assert truncation_error(torch.zeros(2), 1) == 0.0


def test_product_svd_keeps_a_product_however_small() -> None:
    state = fresh()
    grown = trained(state, 1)
    small = Update(delta={**grown.delta, B: 1e-12 * grown.delta[B]}, examples=3)
    exact = mean_product(state, [small])
    gap = product(aggregate(LoraProductSvd(), state, [small])) - exact
    assert float(gap.norm() / exact.norm()) < 1e-9


@given(st.integers(1, 5), st.integers(2, 12), st.integers(2, 12), st.integers(1, 3), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_product_svd_is_the_best_of_its_rank(sites: int, d_out: int, d_in: int, rank: int, seed: int) -> None:
    state = fresh(d_out, d_in, rank)
    updates = [trained(state, seed + i, i + 1) for i in range(sites)]
    rule = LoraProductSvd()
    new = aggregate(rule, state, updates)
    exact = mean_product(state, updates).numpy()
    u, s, vt = np.linalg.svd(exact)
    best = (u[:, : len(s)] * np.where(np.arange(len(s)) < rank, s, 0)) @ vt[: len(s)]
    assert np.allclose(product(new).numpy(), best, atol=1e-9 * max(1.0, s[0]))
    assert (new[A].shape, new[B].shape) == (state[A].shape, state[B].shape)
    error = np.linalg.norm(exact - best) / np.linalg.norm(exact)
    assert rule.report()["truncation"][STEM] == pytest.approx(error, abs=1e-7)


def test_product_svd_splits_singular_values_evenly() -> None:
    state = fresh()
    new = aggregate(LoraProductSvd(), state, [trained(state, seed, n) for seed, n in SITES])
    assert torch.allclose(new[B].norm(dim=0), new[A].norm(dim=1))


def test_product_svd_keeps_directions_without_a_singular_value_alive() -> None:
    state = fresh()
    still = Update(delta={name: torch.zeros_like(v) for name, v in state.items()}, examples=3)
    new = aggregate(LoraProductSvd(), state, [still, still])
    assert torch.equal(new[A], state[A])
    assert torch.equal(new[B], state[B])
    one = Update(
        delta={**still.delta, B: torch.ones(D_OUT, 1).double() * torch.tensor([1.0, 0.0])}, examples=3
    )
    new = aggregate(LoraProductSvd(), state, [one])
    assert torch.allclose(product(new), mean_product(state, [one]), atol=1e-12)
    assert torch.linalg.matrix_rank(new[A]) == RANK, "a zero row of A with a zero column of B never learns"


def test_product_svd_has_no_error_when_the_rank_suffices() -> None:
    state = fresh()
    rule = LoraProductSvd()
    updates = [trained(state, 1)] * 3
    assert torch.allclose(product(aggregate(rule, state, updates)), mean_product(state, updates), atol=1e-12)
    assert rule.report()["checks"]["truncation"] < 1e-7


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_a_frozen_a_makes_the_mean_of_b_exact(examples: list[int], seed: int) -> None:
    common, state = normal(RANK, D_IN, seed=7), {B: normal(D_OUT, RANK, seed=8)}
    updates = [trained(state, seed + i, n) for i, n in enumerate(examples)]
    new = aggregate(FreezeA(), state, updates)
    exact = mean_product(
        state | {A: common},
        [Update(delta={**u.delta, A: common * 0}, examples=u.examples) for u in updates],
    )
    assert torch.allclose(new[B] @ common, exact, atol=1e-12)


def test_freeze_a_refuses_a_shared_a_and_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="sharing: freeze_a") as caught:
        FreezeA().begin(fresh())
    assert A in str(caught.value)


@pytest.mark.parametrize("rule", [LoraStack(), LoraProductSvd()])
def test_half_a_pair_is_refused(rule: AggregationRule) -> None:
    with pytest.raises(ConfigError, match=r"without 'lora_B.weight'"):
        rule.begin({A: fresh()[A]})


def test_vector_12_fedsa_shares_a_alone_and_b_stays() -> None:
    own_b = {site: normal(D_OUT, RANK, seed=i) for i, site in enumerate(("s0", "s1"))}
    before = {site: value.clone() for site, value in own_b.items()}
    state = {A: normal(RANK, D_IN, seed=3)}
    rule = WeightedMean()
    new = aggregate(rule, state, [trained(state, 1, 10), trained(state, 2, 30)])
    assert set(new) == {A}
    assert torch.allclose(
        new[A], state[A] + 0.25 * normal(RANK, D_IN, seed=100) + 0.75 * normal(RANK, D_IN, seed=200)
    )
    assert all(torch.equal(own_b[site], before[site]) for site in own_b)


def test_pairs_are_found_by_name_under_any_prefix() -> None:
    names = ["lora_A.weight", "lora_B.weight", "x.lora_embedding_A", "x.lora_A.bias"]
    result = stems([*(f"{p}.{n}" for p in ("adapter.q", "expert.k") for n in names[:2]), *names[2:]])
    assert result == ["adapter.q", "expert.k"]


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 8), st.integers(1, 12), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_refactoring_to_full_rank_is_exact(m: int, d_out: int, d_in: int, rank: int, seed: int) -> None:
    pairs = [
        LoraPair(normal(rank, d_in, seed=seed + k), normal(d_out, rank, seed=seed + 50 + k)) for k in range(m)
    ]
    whole = stacked(pairs, [1.0] * m)
    full = min(d_out, d_in)
    again, _ = best_of_rank(whole, full)
    assert torch.allclose(again.b @ again.a, whole.b @ whole.a, atol=1e-10)
    assert again.a.shape[0] <= full
    assert whole.norm() == pytest.approx(float(torch.linalg.norm(whole.b @ whole.a)), rel=1e-6, abs=1e-6)
