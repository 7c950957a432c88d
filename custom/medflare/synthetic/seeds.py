# SPDX-License-Identifier: Apache-2.0
"""Random streams of synthetic hospitals, and the same hospital with other patients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count as count_from
from typing import ClassVar, TypeVar

import numpy as np

Hospital = TypeVar("Hospital", bound="SeededHospital")


def random_stream(*keys: int) -> np.random.Generator:
    """Return the random stream of a key such as (hospital seed, patient index, purpose)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(keys)))


def first_numbers(count: int | None) -> Iterable[int]:
    """Return 0 .. count - 1, or all numbers for None."""
    return count_from() if count is None else range(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededHospital:
    """Base of all hospital profiles.

    Attributes:
        name: site name and prefix of patient ids.
        age: mean and standard deviation in years; women: share of women.
        seed: of everything random; profiles with the same seed and different settings share no patients.
        pretraining_seed: first seed of pretraining hospitals, far from those of the demo and of studies.
    """

    pretraining_seed: ClassVar[int]

    name: str
    age: tuple[float, float] = (60.0, 16.0)
    women: float = 0.5
    seed: int = 0

    def with_seed(self: Hospital, seed: int) -> Hospital:
        """Return the same hospital with other patients, for studies over seeds.

        Raises:
            ValueError: seed is outside 0 .. 999.
        """
        if not 0 <= seed < 1000:
            raise ValueError(f"seed is {seed}; expected 0 to 999")
        block = self.seed // self.pretraining_seed * self.pretraining_seed
        return replace(self, seed=block + self.seed % 1000 + 1000 * seed)
