# SPDX-License-Identifier: Apache-2.0
"""Large values in several balanced digits: sums of digits are digits of sums, and none passes its slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.encryption_schemes import Digits, HeParameters, Whole


@dataclass
class Room:
    """Slots of any size; nothing here is encrypted."""

    levels: int
    width: int = 8

    def write(self, numbers: Whole) -> Any:
        raise NotImplementedError

    def fits(self, ciphertext: Any) -> bool:
        raise NotImplementedError

    def read(self, decryptor: Any, ciphertext: Any, added: int) -> Whole:
        raise NotImplementedError


BITS = st.integers(12, 40)
POWERS = st.integers(0, 38)


def drawn(data: st.DataObject, bound: int, count: int) -> np.ndarray:
    """Whole values within the bound, its ends among them often."""
    one = st.one_of(st.sampled_from([-bound, bound, 0, -1]), st.integers(-bound, bound))
    return np.array(data.draw(st.lists(one, min_size=count, max_size=count)), dtype=np.float64)


@given(bits=BITS, power=POWERS, extra=st.integers(0, 1000), data=st.data())
def test_values_come_back_whatever_number_of_digits_they_take(
    bits: int, power: int, extra: int, data: st.DataObject
) -> None:
    room, bound = Room((1 << bits) + extra), 1 << power
    digits = Digits.of(room, HeParameters(bound=bound, additions=1, step=1.0))
    values = drawn(data, bound, 5)
    assert digits.together(digits.apart(values)).tolist() == values.tolist()


@given(bits=BITS, power=POWERS, data=st.data())
def test_no_digit_passes_its_slot(bits: int, power: int, data: st.DataObject) -> None:
    room, bound = Room(1 << bits), 1 << power
    digits = Digits.of(room, HeParameters(bound=bound, additions=1, step=1.0))
    numbers = digits.apart(drawn(data, bound, 5))
    assert len(numbers) == 5 * digits.count
    assert np.abs(numbers).max() <= room.levels


@given(bits=BITS, power=st.integers(0, 34), data=st.data())
def test_sums_of_digits_are_digits_of_sums(bits: int, power: int, data: st.DataObject) -> None:
    digits = Digits.of(Room(1 << bits), HeParameters(bound=1 << power, additions=4, step=1.0))
    vectors = [drawn(data, 1 << power, 3) for _ in range(4)]
    total = np.sum([digits.apart(vector) for vector in vectors], axis=0)
    assert digits.together(total).tolist() == np.sum(vectors, axis=0).tolist()


@pytest.mark.parametrize(
    ("bound", "step"), [(1.0, 2.0**-20), (0.7, 2.0**-20), (1.01, 2.0**-19), (1024.0, 2.0**-10)]
)
def test_the_default_step_is_the_finest_power_of_two_that_fits_one_number(bound: float, step: float) -> None:
    digits = Digits.of(Room(1 << 20), HeParameters(bound=bound))
    assert (digits.step, digits.count) == (step, 1)


def test_a_step_that_one_number_holds_takes_one() -> None:
    assert Digits.of(Room(1 << 20), HeParameters(bound=1.0, step=2.0**-20)).count == 1
    assert Digits.of(Room(1 << 20), HeParameters(bound=1.0, step=2.0**-21)).count == 2


def test_what_64_bit_numbers_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"256 values up to 1 in steps of .* more than 62 bits"):
        Digits.of(Room(1 << 20), HeParameters(bound=1.0, additions=256, step=2.0**-54))
