# SPDX-License-Identifier: Apache-2.0
"""Signed messages of sites: their public keys of a round, and the survivors whose updates are summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.key_agreement import KEY
from medflare.secure_aggregation.masking_errors import BrokenProtocol, UntrustedSite
from medflare.secure_aggregation.protocol_bytes import decode_bytes, encode_bytes, statement
from medflare.secure_aggregation.round_parameters import RoundParameters


@dataclass(frozen=True, slots=True)
class Peer:
    """A site as its verified advertisement describes it: certificate (PEM, or empty) and public keys."""

    certificate: str
    share_key: bytes
    mask_key: bytes


def make_advert(
    identity: Identity, parameters: RoundParameters, share_key: bytes, mask_key: bytes
) -> dict[str, Any]:
    """Return this site's public keys for the round, signed."""
    keys = {"share_key": encode_bytes(share_key), "mask_key": encode_bytes(mask_key)}
    signature = identity.sign(_advert_words(parameters, identity.name, keys))
    return {**keys, "certificate": identity.certificate, "signature": encode_bytes(signature)}


def read_advert(
    identity: Identity, parameters: RoundParameters, site: str, advert: Mapping[str, Any]
) -> Peer:
    """Return a site's verified keys.

    Raises:
        UntrustedSite, BrokenProtocol: signature, certificate or message is wrong; the error names the site.
    """
    share_key, mask_key = (
        decode_bytes(advert, key, KEY, phase="advertise", site=site) for key in ("share_key", "mask_key")
    )
    signature = decode_bytes(advert, "signature", None, phase="advertise", site=site)
    words = _advert_words(
        parameters, site, {"share_key": encode_bytes(share_key), "mask_key": encode_bytes(mask_key)}
    )
    certificate = str(advert.get("certificate", ""))
    identity.verify(site, certificate, words, signature, phase="advertise")
    return Peer(certificate, share_key, mask_key)


def check_distinct(peers: Mapping[str, Peer]) -> None:
    """Raise BrokenProtocol if two keys of a round are the same, of one site or of two."""
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


def make_confirmation(
    identity: Identity, parameters: RoundParameters, survivors: Sequence[str]
) -> dict[str, Any]:
    """Return this site's signed statement that exactly these sites' updates are in the sum."""
    signature = identity.sign(_confirmation_words(parameters, identity.name, survivors))
    return {"survivors": list(survivors), "signature": encode_bytes(signature)}


def confirms(
    identity: Identity,
    parameters: RoundParameters,
    survivors: Sequence[str],
    site: str,
    certificate: str,
    message: Mapping[str, Any],
) -> bool:
    """Return whether `message` is that site's signed statement about exactly these survivors."""
    words = _confirmation_words(parameters, site, survivors)
    try:
        signature = decode_bytes(message, "signature", None, phase="confirm", site=site)
        identity.verify(site, certificate, words, signature, phase="confirm")
    except (BrokenProtocol, UntrustedSite):
        return False
    return bool(message.get("survivors") == list(survivors))


def _advert_words(parameters: RoundParameters, site: str, keys: Mapping[str, str]) -> bytes:
    return statement("advert", terms=parameters.digest, site=site, **keys)


def _confirmation_words(parameters: RoundParameters, site: str, survivors: Sequence[str]) -> bytes:
    return statement("confirmation", terms=parameters.digest, site=site, survivors=list(survivors))
