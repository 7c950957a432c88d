# SPDX-License-Identifier: Apache-2.0
"""Random numbers that nobody can predict, as vectors: the key stream of AES-256 in counter mode.

The noise of differential privacy protects only while nobody can take it off again. torch's and numpy's
generators start from a seed and can be run backwards from what they gave; the server knows a run's seed.
"""

from __future__ import annotations

import math
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY_BYTES = 32
_PIECE = 1 << 18
"""Values that are drawn together, so that the intermediate vectors stay small."""


def secret_seed() -> int:
    """Return a seed in [0, 2^63) from the operating system, for torch's and numpy's generators."""
    return int.from_bytes(os.urandom(8), "big") >> 1


class SecureRandom:
    """A stream of random vectors; not to be shared between threads.

    Args:
        key: 32 bytes; None draws them from the operating system. Only a test names a key: whoever knows it
            knows all noise that was made with it.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._stream = Cipher(algorithms.AES(key or os.urandom(KEY_BYTES)), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> np.ndarray:
        """Return uniform uint64 (count,)."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def below(self, limit: int, count: int) -> np.ndarray:
        """Return uniform int64 (count,) in [0, limit), exactly: what does not fit is drawn again.

        Args:
            limit: 1 to 2^62.
        """
        if not 1 <= limit <= 1 << 62:
            raise ValueError(f"limit is {limit}; expected 1 to 2^62.")
        shift = np.uint64(64 - max((limit - 1).bit_length(), 1))
        drawn = self.words(count) >> shift
        while len(again := np.flatnonzero(drawn >= limit)):
            drawn[again] = self.words(len(again)) >> shift
        return drawn.astype(np.int64)

    def happens(self, probability: float, count: int) -> np.ndarray:
        """Return bool (count,), each true with this probability, which is rounded down to a multiple of
        2^-64."""
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; expected 0 to 1.")
        if probability == 1:
            return np.ones(count, dtype=bool)
        return self.words(count) < np.uint64(math.floor(math.ldexp(probability, 64)))

    def gaussian(self, count: int) -> np.ndarray:
        """Return standard normal float64 (count,).

        Each is half the sum of four normal numbers (Holohan and Braghin 2021, section 4): from the value of
        one alone, whose last bits not every real number can have, its draw could be guessed (Mironov 2012).
        """
        out = np.empty(count)
        for start in range(0, count, _PIECE):
            part = out[start : start + _PIECE]
            part[:] = sum(self._normal(len(part)) for _ in range(4))
            part *= 0.5
        return out

    def _normal(self, count: int) -> np.ndarray:
        """Return normal float64 (count,) by Box and Muller's method."""
        half = (count + 1) // 2
        # (k + 1/2) · 2^-53 is never 0, whose logarithm there is not
        uniform = ((self.words(2 * half) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
