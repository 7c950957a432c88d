# SPDX-License-Identifier: Apache-2.0
"""Key pairs of one round, and the mask keys two sites, or one alone, derive: X25519 and HKDF-SHA256.

Each derived key is bound to the round's terms, to the sites it belongs to and to its segment.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from medflare.secure_aggregation.keystream import derive
from medflare.secure_aggregation.messages import statement

KEY = 32
"""Bytes of an X25519 key, public or private."""
Streams = tuple[bytes, bytes]
"""Keys of two masks: for the narrow and for the wide vector."""


class Pair:
    """An X25519 key pair, fresh unless a private key is given."""

    def __init__(self, private: bytes | None = None) -> None:
        make = X25519PrivateKey
        self._private = make.generate() if private is None else make.from_private_bytes(private)

    @property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        return self._private.private_bytes_raw()

    def agree(self, peer: bytes) -> bytes:
        """The secret shared with the holder of a public key; ValueError for a key of small order."""
        return self._private.exchange(X25519PublicKey.from_public_bytes(peer))


def pair_streams(secret: bytes, terms: str, one: str, other: str) -> Streams:
    """Of the pairwise masks of two sites, named in either order, from the secret they share."""
    return _streams(secret, "pair mask", terms, sorted((one, other)))


def self_streams(seed: bytes, terms: str, site: str) -> Streams:
    """Of a site's self-masks."""
    return _streams(seed, "self mask", terms, [site])


def _streams(secret: bytes, purpose: str, terms: str, sites: list[str]) -> Streams:
    words = {"terms": terms, "sites": sites}
    return (
        derive(secret, statement(purpose, segment="narrow", **words)),
        derive(secret, statement(purpose, segment="wide", **words)),
    )
