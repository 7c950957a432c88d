# SPDX-License-Identifier: Apache-2.0
"""Fixed point in a ring: no overflow for the declared bound and number of sites, and the declared error."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from masking_round import LAYOUT, make_terms, make_update

from medflare.core.errors import ConfigError, UpdateError
from medflare.secure_aggregation.fixed_point import PIECE, OutOfBound, Ring
from medflare.secure_aggregation.masked_update import encode

BITS = st.sampled_from([16, 32, 64])
BOUNDS = st.floats(1e-6, 1e4)
SITES = st.integers(2, 300)


def encoded(ring: Ring, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    out = torch.empty(len(values), dtype=ring.dtype)
    ring.encode_into(out, values, weight)
    return out


@settings(deadline=None)
@given(BITS, BOUNDS, SITES)
def test_all_sites_at_the_bound_fill_at_most_half_of_the_ring_and_more_than_a_quarter(
    bits: int, bound: float, sites: int
) -> None:
    assume(bits > 16 or bound * sites < 2**5)
    ring = Ring(bits, bound, sites)
    most = int(encoded(ring, torch.tensor([bound], dtype=torch.float64)))
    assert most <= ring.most
    assert sites * ring.most <= 1 << (bits - 2)
    finer = math.ceil(math.ldexp(bound, ring.fraction + 1))
    assert sites * finer > 1 << (bits - 2), "one more bit behind the point would have fitted"


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("bits", "bound", "sites"),
    [
        *(
            (bits, *one)
            for bits in (32, 64)
            for one in [(16.0, 2), (16.0, 3), (16.0, 64), (0.1, 7), (1e3, 100)]
        ),
        *((16, *one) for one in [(16.0, 2), (16.0, 3), (0.01, 3), (0.1, 7)]),
    ],
)
def test_the_sum_at_the_extremes_comes_back(bits: int, bound: float, sites: int, sign: float) -> None:
    ring = Ring(bits, bound, sites)
    values = torch.full((5,), sign * bound, dtype=torch.float64)
    total = torch.zeros(5, dtype=ring.dtype)
    for _ in range(sites):
        total += encoded(ring, values)
    torch.testing.assert_close(
        ring.decode(total), torch.full_like(values, sign * bound * sites), atol=ring.error, rtol=2**-51
    )


@settings(deadline=None)
@given(
    BITS,
    st.lists(st.tuples(st.floats(-4, 4, width=32), st.floats(1e-6, 1)), min_size=2, max_size=12),
)
def test_sums_are_off_by_at_most_the_declared_error(bits: int, given_: list[tuple[float, float]]) -> None:
    ring = Ring(bits, 4.0, len(given_))
    total = torch.zeros(1, dtype=ring.dtype)
    for value, weight in given_:
        total += encoded(ring, torch.tensor([value], dtype=torch.float64), weight)
    exact = math.fsum(value * weight for value, weight in given_)
    assert abs(ring.decode(total).item() - exact) <= ring.error + 2**-50 * 4 * len(given_)


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(2, 50))
def test_whole_numbers_are_exact_in_the_wide_ring(weight: int, sites: int) -> None:
    ring = Ring(64, float(1 << 30), sites)
    total = sum(encoded(ring, torch.tensor([float(weight)])) for _ in range(sites))
    assert isinstance(total, torch.Tensor)
    assert ring.decode(total).item() == weight * sites


def test_sixteen_for_three_sites_resolves_six_hundred_millionths() -> None:
    ring = Ring(32, 16.0, 3)
    assert ring.fraction == 24
    assert ring.error == 3 * 2.0**-25


@pytest.mark.parametrize("value", [16.000002, -17.0, math.inf, -math.inf, math.nan])
def test_a_value_beyond_the_bound_is_refused_with_its_place(value: float) -> None:
    values = torch.zeros(PIECE + 10)
    values[PIECE + 7] = value
    with pytest.raises(OutOfBound) as found:
        encoded(Ring(32, 16.0, 3), values)
    assert found.value.position == PIECE + 7
    assert found.value.value == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "value"), [("adapter.lora_B", -16.5), ("adapter.steps", 2**31), ("sum:bank.count", 3e9)]
)
def test_the_server_is_told_the_tensor_and_the_site_the_value(name: str, value: float) -> None:
    tensors, weight = make_update("site-01")
    tensors[name].view(-1)[-1] = value
    with pytest.raises(UpdateError, match="Nothing was sent") as found:
        encode(make_terms(3), LAYOUT, *LAYOUT.pack(tensors), weight)
    assert str(found.value).startswith(f"tensor '{name}' has a value beyond the bound")
    assert f"{value:g}" not in str(found.value)  # this text leaves the site
    assert f"{value:g}" in str(found.value.__cause__)  # and this stays in its log


@pytest.mark.parametrize("weight", [0, -1, 1000.5, math.nan, math.inf])
def test_a_weight_outside_the_terms_is_refused(weight: float) -> None:
    tensors, _ = make_update("site-01")
    with pytest.raises(UpdateError, match="expected above 0, at most 1000"):
        encode(make_terms(3), LAYOUT, *LAYOUT.pack(tensors), weight)


def test_vectors_of_another_length_are_refused() -> None:
    with pytest.raises(UpdateError, match=r"expected \(128,\) and \(8,\)"):
        encode(make_terms(3), LAYOUT, torch.zeros(127), torch.zeros(8, dtype=torch.float64), 1)


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, 1e9])
def test_a_bound_no_ring_can_hold_is_refused(bound: float) -> None:
    with pytest.raises(ConfigError, match=r"bound"):
        Ring(32, bound, 3)


def test_sixteen_bits_resolve_a_small_bound_as_bf16_resolves_its_half() -> None:
    ring = Ring(16, 2.0**-6, 3)
    assert ring.fraction == 18
    assert 2.0**-ring.fraction <= 2.0**-7 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("bits", [16, 32])
def test_decoding_to_float32_is_decoding(bits: int) -> None:
    ring = Ring(bits, 16.0, 3)
    numbers = encoded(ring, torch.randn(2 * PIECE + 5, generator=torch.Generator().manual_seed(0)))
    expected = ring.decode(numbers, 2.5).float()
    assert torch.equal(ring.decode_to_float32(numbers, 2.5), expected)
