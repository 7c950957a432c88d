# SPDX-License-Identifier: Apache-2.0
"""Shares of a site's two secrets for every other site, committed to and sealed.

The secrets are the private mask key and the seed of the self-mask. The dealer commits itself to every share
by its hash, so that whoever later shows another one, dealer or holder, is known by name. A share is uniform,
its hash says nothing of it. Shares are sealed with AES-256-GCM under a key of dealer and holder alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from medflare.secure_aggregation import shamir
from medflare.secure_aggregation.keystream import derive
from medflare.secure_aggregation.protocol_bytes import commitment, statement
from medflare.secure_aggregation.round_parameters import RoundParameters

_NONCE = 12
SEALED = _NONCE + 2 * shamir.SIZE + 16
"""Bytes of two sealed shares."""
SECRETS = ("mask", "self")
"""The private mask key, and the seed of the self-mask."""


@dataclass(frozen=True, slots=True)
class HolderShares:
    """Shares that one holder has of one dealer: of its mask key and of its self-mask seed."""

    mask: bytes
    self_: bytes

    def share(self, secret: str) -> bytes:
        return self.mask if secret == "mask" else self.self_


def split_secrets(
    parameters: RoundParameters, mask_key: bytes, seed: bytes, holders: Iterable[str]
) -> dict[str, HolderShares]:
    """Return shares of both secrets for each holder."""
    count = len(parameters.sites)
    masks, seeds = (shamir.split(secret, parameters.threshold, count) for secret in (mask_key, seed))
    return {
        site: HolderShares(masks[parameters.index(site)], seeds[parameters.index(site)]) for site in holders
    }


def seed_commitment(parameters: RoundParameters, dealer: str, seed: bytes) -> str:
    """Return a dealer's commitment to its seed; its mask key needs none, since the public key is known."""
    return commitment(statement("seed", terms=parameters.digest, dealer=dealer), seed)


def share_commitment(parameters: RoundParameters, dealer: str, holder: str, secret: str, share: bytes) -> str:
    """Return a dealer's commitment to one share."""
    words = {"terms": parameters.digest, "dealer": dealer, "holder": holder, "secret": secret}
    return commitment(statement("share", **words), share)


def commitments(parameters: RoundParameters, dealer: str, holder: str, dealt: HolderShares) -> list[str]:
    """Return the commitments to a holder's shares, in the order of `SECRETS`."""
    return [share_commitment(parameters, dealer, holder, secret, dealt.share(secret)) for secret in SECRETS]


def seal(parameters: RoundParameters, dealer: str, holder: str, dealt: HolderShares, agreed: bytes) -> bytes:
    """Return the shares encrypted for a holder; round, dealer, holder and commitments are bound to them."""
    words = _words(parameters, dealer, holder, commitments(parameters, dealer, holder, dealt))
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(derive(agreed, words)).encrypt(nonce, dealt.mask + dealt.self_, words)


def open_sealed(
    parameters: RoundParameters, dealer: str, holder: str, sealed: bytes, held: Any, agreed: bytes
) -> HolderShares | None:
    """Return what `seal` sealed, given the commitments as they travelled (JSON); None if anything differs."""
    words = _words(parameters, dealer, holder, held)
    try:
        plain = AESGCM(derive(agreed, words)).decrypt(sealed[:_NONCE], sealed[_NONCE:], words)
    except InvalidTag:
        return None
    dealt = HolderShares(plain[: shamir.SIZE], plain[shamir.SIZE :])
    return dealt if commitments(parameters, dealer, holder, dealt) == held else None


def _words(parameters: RoundParameters, dealer: str, holder: str, held: Any) -> bytes:
    return statement("sealed shares", terms=parameters.digest, dealer=dealer, holder=holder, held=held)
