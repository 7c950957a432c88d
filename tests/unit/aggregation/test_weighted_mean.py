# SPDX-License-Identifier: Apache-2.0
"""FedAvg in delta form, and why averaging LoRA factors is not averaging updates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medflare.aggregation.base import Weighting
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import UpdateError
from medflare.core.tensors import PIECE, State, add_scaled
from medflare.core.update import Update

WEIGHTINGS: tuple[Weighting, ...] = ("examples", "tokens", "uniform")


def aggregate(rule: WeightedMean, state: State, updates: dict[str, Update]) -> State:
    rule.begin(state)
    for site, update in updates.items():
        rule.add(site, update)
    return rule.finish()


def test_vector_2_identical_clients_return_the_input() -> None:
    state = {"w": torch.tensor([1.0, -2.0])}
    delta = {"w": torch.tensor([0.5, 0.25])}
    updates = {f"s{i}": Update(delta=delta, examples=10 * (i + 1)) for i in range(3)}
    assert torch.equal(aggregate(WeightedMean(), state, updates)["w"], state["w"] + delta["w"])


def test_weights_are_examples_over_those_who_took_part() -> None:
    updates = {
        "a": Update(delta={"w": torch.tensor([1.0])}, examples=1),
        "b": Update(delta={"w": torch.tensor([4.0])}, examples=2),
    }
    state = {"w": torch.zeros(1)}
    assert aggregate(WeightedMean(), state, updates)["w"].item() == pytest.approx(3.0)
    assert aggregate(WeightedMean(weighting="uniform"), state, updates)["w"].item() == pytest.approx(2.5)


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 1000)), min_size=1, max_size=6))
def test_result_lies_in_the_hull_of_the_sites(sites: list[tuple[float, int]]) -> None:
    updates = {
        str(i): Update(delta={"w": torch.tensor([d], dtype=torch.float64)}, examples=n)
        for i, (d, n) in enumerate(sites)
    }
    result = aggregate(WeightedMean(), {"w": torch.zeros(1, dtype=torch.float64)}, updates)["w"].item()
    assert min(d for d, _ in sites) - 1e-9 <= result <= max(d for d, _ in sites) + 1e-9


def test_bf16_updates_are_summed_in_fp32() -> None:
    updates = {
        str(i): Update(delta={"w": torch.full((1,), 1e-3, dtype=torch.bfloat16)}, examples=1)
        for i in range(512)
    }
    result = aggregate(WeightedMean(), {"w": torch.zeros(1)}, updates)["w"].item()
    assert result == pytest.approx(float(torch.tensor(1e-3).to(torch.bfloat16)), rel=1e-5)


def test_an_unknown_weighting_is_an_error() -> None:
    with pytest.raises(ValueError, match="'examples', 'tokens' or 'uniform'"):
        WeightedMean(weighting="loss")  # type: ignore[arg-type]


def test_only_a_weighting_by_tokens_reads_the_sites_tokens() -> None:
    read = {weighting: WeightedMean(weighting=weighting).metrics_read() for weighting in WEIGHTINGS}
    assert read == {"examples": (), "tokens": ("tokens",), "uniform": ()}


@pytest.mark.parametrize(
    ("tokens", "taken"), [(0.5, False), (1, True), (80, True), (81, False), (None, False)]
)
def test_tokens_must_lie_within_what_the_examples_allow(tokens: float | None, taken: bool) -> None:
    rule = WeightedMean(weighting="tokens", most_tokens=8)
    rule.begin({"w": torch.zeros(1)})
    metrics = {} if tokens is None else {"tokens": float(tokens)}
    update = Update(delta={"w": torch.ones(1)}, examples=10, metrics=metrics)
    if taken:
        assert rule.weight("a", update) == tokens
        return
    with pytest.raises(UpdateError, match=r"metric 'tokens' of 'a' is .*; weighting needs 1 to 80"):
        rule.add("a", update)


def test_vector_8_factor_averaging_errs_by_a_weighted_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    b = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    a = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    mean_b, mean_a = (torch.einsum("k,kij->ij", weights, x) for x in (b, a))
    gap = torch.einsum("k,kij,kjl->il", weights, b, a) - mean_b @ mean_a
    covariance = torch.einsum("k,kij,kjl->il", weights, b - mean_b, a - mean_a)
    pairs = sum(
        weights[k] * weights[j] * (b[k] - b[j]) @ (a[k] - a[j]) for k in range(3) for j in range(k + 1, 3)
    )
    assert torch.allclose(gap, covariance, atol=1e-12)
    assert torch.allclose(gap, pairs, atol=1e-12)


def test_a_bf16_update_is_widened_in_pieces_with_the_same_result() -> None:
    delta = torch.randn(2, PIECE // 2 + 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    total = {"w": torch.ones(delta.shape)}
    add_scaled(total, {"w": delta}, 0.3)
    assert torch.equal(total["w"], torch.ones(delta.shape).add_(delta.float(), alpha=0.3))


def test_finishing_takes_the_place_of_the_sum() -> None:
    rule, state = WeightedMean(), {"w": torch.ones(3), "n": torch.tensor(7)}
    rule.begin(state)
    place = rule._sum["w"].data_ptr()
    rule.add("a", Update(delta={"w": torch.full((3,), 0.5), "n": torch.tensor(2)}, examples=4))
    new = rule.finish()
    assert new["w"].data_ptr() == place
    assert (new["w"].tolist(), new["n"].item()) == ([1.5] * 3, 9)
    assert state["w"].tolist() == [1.0] * 3
