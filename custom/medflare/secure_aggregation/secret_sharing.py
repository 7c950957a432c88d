# SPDX-License-Identifier: Apache-2.0
"""How a site's two secrets are dealt: a share of each for every holder, committed to and sealed.

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
from medflare.secure_aggregation.messages import commitment, statement
from medflare.secure_aggregation.round_parameters import Terms

_NONCE = 12
SEALED = _NONCE + 2 * shamir.SIZE + 16
"""Bytes of two sealed shares."""
SECRETS = ("mask", "self")
"""The private mask key, and the seed of the self-mask."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """What one holder has of one dealer: a share of its mask key and one of its seed."""

    mask: bytes
    self_: bytes

    def share(self, secret: str) -> bytes:
        return self.mask if secret == "mask" else self.self_


def deal(terms: Terms, mask_key: bytes, seed: bytes, holders: Iterable[str]) -> dict[str, Dealt]:
    """Shares of both secrets for each holder."""
    count = len(terms.sites)
    masks, seeds = (shamir.split(secret, terms.threshold, count) for secret in (mask_key, seed))
    return {site: Dealt(masks[terms.index(site)], seeds[terms.index(site)]) for site in holders}


def seed_commitment(terms: Terms, dealer: str, seed: bytes) -> str:
    """To what a dealer commits itself about its seed; its mask key has a public half."""
    return commitment(statement("seed", terms=terms.digest, dealer=dealer), seed)


def share_commitment(terms: Terms, dealer: str, holder: str, secret: str, share: bytes) -> str:
    """To what a dealer commits itself about one share."""
    words = {"terms": terms.digest, "dealer": dealer, "holder": holder, "secret": secret}
    return commitment(statement("share", **words), share)


def commitments(terms: Terms, dealer: str, holder: str, dealt: Dealt) -> list[str]:
    """The commitments to a holder's shares, in the order of `SECRETS`."""
    return [share_commitment(terms, dealer, holder, secret, dealt.share(secret)) for secret in SECRETS]


def seal(terms: Terms, dealer: str, holder: str, dealt: Dealt, agreed: bytes) -> bytes:
    """The shares for a holder's eyes; round, dealer, holder and commitments are bound to them."""
    words = _words(terms, dealer, holder, commitments(terms, dealer, holder, dealt))
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(derive(agreed, words)).encrypt(nonce, dealt.mask + dealt.self_, words)


def open_sealed(
    terms: Terms, dealer: str, holder: str, sealed: bytes, held: Any, agreed: bytes
) -> Dealt | None:
    """The inverse of `seal`, given the commitments as they travelled (JSON); None if anything differs."""
    words = _words(terms, dealer, holder, held)
    try:
        plain = AESGCM(derive(agreed, words)).decrypt(sealed[:_NONCE], sealed[_NONCE:], words)
    except InvalidTag:
        return None
    dealt = Dealt(plain[: shamir.SIZE], plain[shamir.SIZE :])
    return dealt if commitments(terms, dealer, holder, dealt) == held else None


def _words(terms: Terms, dealer: str, holder: str, held: Any) -> bytes:
    return statement("sealed shares", terms=terms.digest, dealer=dealer, holder=holder, held=held)
