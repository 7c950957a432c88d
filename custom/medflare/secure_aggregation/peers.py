# SPDX-License-Identifier: Apache-2.0
"""What sites say under their signature: their public keys of a round, and who survived it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medflare.secure_aggregation.errors import BrokenProtocol, UntrustedSite
from medflare.secure_aggregation.exchange import KEY
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.messages import statement, take_bytes, to_text
from medflare.secure_aggregation.round_parameters import Terms


@dataclass(frozen=True, slots=True)
class Peer:
    """A site as its verified advert describes it: certificate (PEM, or empty) and public keys."""

    certificate: str
    share_key: bytes
    mask_key: bytes


def make_advert(identity: Identity, terms: Terms, share_key: bytes, mask_key: bytes) -> dict[str, Any]:
    """This site's public keys for the round, signed."""
    keys = {"share_key": to_text(share_key), "mask_key": to_text(mask_key)}
    signature = identity.sign(_advert_words(terms, identity.name, keys))
    return {**keys, "certificate": identity.certificate, "signature": to_text(signature)}


def read_advert(identity: Identity, terms: Terms, site: str, advert: Mapping[str, Any]) -> Peer:
    """A site's verified keys; UntrustedSite or BrokenProtocol that names the site."""
    share_key, mask_key = (
        take_bytes(advert, key, KEY, phase="advertise", site=site) for key in ("share_key", "mask_key")
    )
    signature = take_bytes(advert, "signature", None, phase="advertise", site=site)
    words = _advert_words(terms, site, {"share_key": to_text(share_key), "mask_key": to_text(mask_key)})
    certificate = str(advert.get("certificate", ""))
    identity.verify(site, certificate, words, signature, phase="advertise")
    return Peer(certificate, share_key, mask_key)


def check_distinct(peers: Mapping[str, Peer]) -> None:
    """Raises BrokenProtocol if two keys of a round are the same, of one site or of two."""
    owners: dict[bytes, str] = {}
    for site in sorted(peers):
        for key in (peers[site].share_key, peers[site].mask_key):
            if key in owners:
                raise BrokenProtocol(
                    f"secure aggregation, advertise: '{owners[key]}' and '{site}' gave the same public key; "
                    "expected two fresh ones of every site. One of them copies the other.",
                    phase="advertise",
                    sites={owners[key], site},
                )
            owners[key] = site


def make_confirmation(identity: Identity, terms: Terms, survivors: Sequence[str]) -> dict[str, Any]:
    """This site's word, signed, that exactly these sites' updates are in the sum."""
    signature = identity.sign(_confirmation_words(terms, identity.name, survivors))
    return {"survivors": list(survivors), "signature": to_text(signature)}


def confirms(
    identity: Identity,
    terms: Terms,
    survivors: Sequence[str],
    site: str,
    certificate: str,
    message: Mapping[str, Any],
) -> bool:
    """Whether `message` is a site's own word that these survived, and no others."""
    words = _confirmation_words(terms, site, survivors)
    try:
        signature = take_bytes(message, "signature", None, phase="confirm", site=site)
        identity.verify(site, certificate, words, signature, phase="confirm")
    except (BrokenProtocol, UntrustedSite):
        return False
    return bool(message.get("survivors") == list(survivors))


def _advert_words(terms: Terms, site: str, keys: Mapping[str, str]) -> bytes:
    return statement("advert", terms=terms.digest, site=site, **keys)


def _confirmation_words(terms: Terms, site: str, survivors: Sequence[str]) -> bytes:
    return statement("confirmation", terms=terms.digest, site=site, survivors=list(survivors))
