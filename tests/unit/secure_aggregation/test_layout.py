# SPDX-License-Identifier: Apache-2.0
"""One order for all sites: floats to the narrow vector, integers and sums to the wide one."""

from __future__ import annotations

import pytest
import torch

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.tensors import SharedSpec, State
from medflare.secure_aggregation.layout import Layout

SHARED: SharedSpec = {
    "b.weight": ((2, 3), torch.float32),
    "a.weight": ((4,), torch.bfloat16),
    "a.steps": ((), torch.int64),
    "empty": ((0, 5), torch.float32),
}
SUMS: SharedSpec = {"sum:bank.count": ((2,), torch.float32)}


def tensors() -> State:
    return {
        "b.weight": torch.arange(6.0).view(2, 3),
        "a.weight": torch.full((4,), 0.5, dtype=torch.bfloat16),
        "a.steps": torch.tensor(7),
        "empty": torch.zeros(0, 5),
        "sum:bank.count": torch.tensor([3.0, 4.0]),
    }


def test_floats_are_narrow_integers_and_sums_are_wide() -> None:
    narrow, wide = Layout.of(SHARED, SUMS).pack(tensors())
    assert narrow.dtype == torch.float32
    assert wide.dtype == torch.float64
    assert narrow.tolist() == [0.5] * 4 + [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert wide.tolist() == [7.0, 3.0, 4.0]


def test_integer_tensors_are_weighted_and_sums_are_not() -> None:
    assert Layout.of(SHARED, SUMS).weighted == 1
    assert Layout.of({}, SUMS).weighted == 0


def test_unpack_gives_back_what_was_packed() -> None:
    layout = Layout.of(SHARED, SUMS)
    result = layout.unpack(*layout.pack(tensors()))
    assert set(result) == set(tensors())
    for name, value in tensors().items():
        assert torch.equal(result[name], value.to(result[name].dtype)), name


def test_order_of_declaration_does_not_matter() -> None:
    layout = Layout.of(SHARED, SUMS)
    assert layout == Layout.of(dict(reversed(SHARED.items())), SUMS)


@pytest.mark.parametrize(
    "shared",
    [
        {**SHARED, "c": ((1,), torch.float32)},
        {**SHARED, "a.weight": ((5,), torch.bfloat16)},
        {**SHARED, "a.weight": ((4,), torch.float32)},
        {("c" if name == "a.weight" else name): spec for name, spec in SHARED.items()},
    ],
    ids=["one more", "other shape", "other dtype", "other name"],
)
def test_digest_differs_with_every_declared_thing(shared: SharedSpec) -> None:
    assert Layout.of(shared, SUMS).digest != Layout.of(SHARED, SUMS).digest


def test_a_counter_that_becomes_a_sum_changes_the_digest() -> None:
    spec: SharedSpec = {"n": ((1,), torch.int64)}
    assert Layout.of(spec, {}).digest != Layout.of({}, spec).digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(1)}, "unexpected tensor 'x'"),
        ({"b.weight": torch.zeros(3, 2)}, r"'b.weight' has shape \(3, 2\)"),
        ({"b.weight": torch.full((2, 3), torch.nan)}, "'b.weight' has values that are not finite"),
    ],
)
def test_pack_is_strict(change: State, words: str) -> None:
    with pytest.raises(UpdateError, match=words):
        Layout.of(SHARED, SUMS).pack({**tensors(), **change})


def test_a_missing_tensor_is_named() -> None:
    given = tensors()
    del given["a.steps"]
    with pytest.raises(UpdateError, match=r"missing tensor 'a\.steps'"):
        Layout.of(SHARED, SUMS).pack(given)


def test_vectors_of_another_length_are_refused() -> None:
    layout = Layout.of(SHARED, SUMS)
    with pytest.raises(ValueError, match=r"expects \(\(10,\), \(3,\)\)"):
        layout.unpack(torch.zeros(10), torch.zeros(4))


@pytest.mark.parametrize(
    ("position", "name"), [(0, "a.weight"), (3, "a.weight"), (4, "b.weight"), (9, "b.weight")]
)
def test_a_position_belongs_to_a_tensor(position: int, name: str) -> None:
    assert Layout.of(SHARED, SUMS).narrow.name_at(position) == name


def test_a_name_declared_twice_and_complex_tensors_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'b\.weight' is declared as shared and as a sum"):
        Layout.of(SHARED, {"b.weight": ((1,), torch.float32)})
    with pytest.raises(ConfigError, match="'z' is complex"):
        Layout.of({"z": ((1,), torch.complex64)}, {})
