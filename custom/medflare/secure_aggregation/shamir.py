# SPDX-License-Identifier: Apache-2.0
"""Secrets of 32 bytes in n shares of which any t give the secret back and t - 1 say nothing (Shamir 1979).

The arithmetic is pycryptodome's, over GF(2^128): a secret is two halves of 16 bytes, and so is a share.
"""

from __future__ import annotations

from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir

SIZE = 32
"""Bytes of a secret, and of each share."""
_HALF = SIZE // 2


def split(secret: bytes, threshold: int, count: int) -> dict[int, bytes]:
    """Return shares of a secret under their indices 1 to `count`; ValueError for sizes that cannot be."""
    if len(secret) != SIZE or not 1 <= threshold <= count:
        raise ValueError(
            f"{len(secret)} bytes as {threshold} of {count}; expected {SIZE} bytes, 1 <= t <= n."
        )
    halves = [Shamir.split(threshold, count, part) for part in (secret[:_HALF], secret[_HALF:])]
    return {index: first + second for (index, first), (_, second) in zip(*halves, strict=True)}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from exactly as many shares as its threshold; other bytes if one is wrong."""
    first = Shamir.combine([(index, share[:_HALF]) for index, share in shares.items()])
    second = Shamir.combine([(index, share[_HALF:]) for index, share in shares.items()])
    return bytes(first + second)
