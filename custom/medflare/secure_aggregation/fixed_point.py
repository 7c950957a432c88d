# SPDX-License-Identifier: Apache-2.0
"""Real numbers as elements of a ring Z_2^16, Z_2^32 or Z_2^64, in which masks hide them and sums stay exact.

Overflow cannot happen. Let L = ceil(bound · 2^f). A value x with |x| <= bound and a weight u in [0, 1] become
q = round(x · u · 2^f), and |q| <= L: the product in float64 is at most bound · 2^f because rounding keeps
order and scaling by 2^f is exact, and the integer nearest to a number within [-L, L] lies there too. f is the
largest with sites · L <= 2^(bits - 2), so the sum of at most `sites` encoded values lies within a quarter of
the ring on either side of zero, and two's complement reads it back as it is. The other half of the ring
stays empty: what does not unmask to a sum lands there with probability 1/2 for every value, and is noticed.

The error is as small as the ring allows: half a unit 2^-f for each site that takes part (`Ring.error`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from medflare.core.errors import ConfigError

PIECE = 1 << 16
"""Values that are worked on together: they stay in the processor's cache."""
LEAST_FRACTION = 8
"""Bits behind the point below which a ring is too coarse to be of use."""
_SIGNED = {16: torch.int16, 32: torch.int32, 64: torch.int64}


class OutOfBound(ValueError):  # noqa: N818 - reads as what it says
    """A value beyond the declared bound; `position` in the vector, `value` as found."""

    def __init__(self, position: int, value: float) -> None:
        super().__init__(f"value {value:g} at position {position}")
        self.position, self.value = position, value


@dataclass(frozen=True)
class Ring:
    """Fixed-point format of values up to `bound`: integers of `bits` bits, of which `sites` can be summed."""

    bits: int
    bound: float
    sites: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise ConfigError(f"bound of values is {self.bound}; expected a positive number.")
        if self.fraction < LEAST_FRACTION:
            raise ConfigError(
                f"bound {self.bound:g} for {self.sites} sites leaves {self.fraction} bits behind the point "
                f"in a ring of {self.bits} bits; expected {LEAST_FRACTION} or more. Declare a smaller bound."
            )

    @cached_property
    def fraction(self) -> int:
        """f: bits behind the point."""
        room = 1 << (self.bits - 2)
        bits = math.floor(math.log2(room) - math.log2(self.sites) - math.log2(self.bound)) + 1
        while self.sites * math.ceil(math.ldexp(self.bound, bits)) > room:
            bits -= 1
        return bits

    @property
    def most(self) -> int:
        """L: the largest absolute value of an encoded number."""
        return math.ceil(math.ldexp(self.bound, self.fraction))

    @property
    def dtype(self) -> torch.dtype:
        return _SIGNED[self.bits]

    @property
    def error(self) -> float:
        """Largest error of a sum over all sites, beside float64's own rounding (2^-52 of the value)."""
        return self.sites * math.ldexp(0.5, -self.fraction)

    def encode_into(self, out: Tensor, values: Tensor, weight: float = 1.0) -> None:
        """out[i] = round(values[i] · weight · 2^f), both (N,) on the CPU; `weight` in [0, 1].

        Raises OutOfBound for the first piece's largest value beyond the bound, or one that is not finite.
        """
        assert 0 <= weight <= 1, weight
        assert out.dtype == self.dtype, out.dtype
        source, target = values.numpy(), out.numpy()
        factor = math.ldexp(weight, self.fraction)
        for piece in pieces(len(source)):
            part = source[piece].astype(np.float64)
            largest = np.abs(part).max()
            if not largest <= self.bound:
                raise _first_beyond(part, self.bound, piece.start)
            part *= factor
            target[piece] = np.rint(part, out=part)

    def decode(self, values: Tensor, factor: float = 1.0) -> Tensor:
        """Return a sum (N,) as fp64, multiplied by `factor`."""
        return values.double() * math.ldexp(factor, -self.fraction)

    def decode_to_float32(self, values: Tensor, factor: float) -> Tensor:
        """As `decode`, in fp32; of a ring of 32 bits in the place of `values`, which is used up."""
        source = values.numpy()
        target = source.view(np.float32) if self.bits == 32 else np.empty(len(source), np.float32)
        scale = math.ldexp(factor, -self.fraction)
        for piece in pieces(len(source)):
            target[piece] = source[piece] * scale
        return torch.from_numpy(target)


def pieces(size: int) -> Iterator[slice]:
    """Yield slices that cover a vector."""
    return (slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE))


def _first_beyond(part: np.ndarray, bound: float, start: int) -> OutOfBound:
    position = int(np.flatnonzero(~(np.abs(part) <= bound))[0])
    return OutOfBound(start + position, float(part[position]))
