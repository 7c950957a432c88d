# SPDX-License-Identifier: Apache-2.0
"""Key pairs of one round and the keys of masks derived from them: X25519 and HKDF-SHA256.

Each derived key is bound to the round's parameters, to the sites it belongs to and to its segment.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from medflare.secure_aggregation.keystream import derive
from medflare.secure_aggregation.protocol_bytes import statement

KEY = 32
"""Bytes of an X25519 key, public or private."""
MaskKeys = tuple[bytes, bytes]
"""Keys of two masks: for the narrow and for the wide vector."""


class KeyPair:
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
        """Return the secret shared with the holder of a public key; ValueError for a key of small order."""
        return self._private.exchange(X25519PublicKey.from_public_bytes(peer))


def pair_mask_keys(secret: bytes, round_digest: str, one: str, other: str) -> MaskKeys:
    """Return the keys of two sites' pairwise masks from their shared secret; the order of names is free."""
    return _mask_keys(secret, "pair mask", round_digest, sorted((one, other)))


def self_mask_keys(seed: bytes, round_digest: str, site: str) -> MaskKeys:
    """Return the keys of a site's self-masks."""
    return _mask_keys(seed, "self mask", round_digest, [site])


def _mask_keys(secret: bytes, purpose: str, round_digest: str, sites: list[str]) -> MaskKeys:
    words = {"terms": round_digest, "sites": sites}
    return (
        derive(secret, statement(purpose, segment="narrow", **words)),
        derive(secret, statement(purpose, segment="wide", **words)),
    )
