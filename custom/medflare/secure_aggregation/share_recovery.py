# SPDX-License-Identifier: Apache-2.0
"""Recovers a site's secret from the shares of others, and finds out who showed or dealt wrong shares.

Shares that are not what their dealer committed itself to are their holder's lie. If those that are do not
give a secret that fits the dealer's public key or commitment, the dealer lied; some of them may still do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from medflare.secure_aggregation import shamir
from medflare.secure_aggregation.masking_errors import BrokenProtocol
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.secure_aggregation.secret_sharing import SECRETS, share_commitment

MOST_TRIES = 500
"""Sets of shares that are tried: all of them up to 11 sites with the default threshold."""


@dataclass(slots=True)
class Recovered:
    """A secret, and site -> what it did wrong on the way."""

    secret: bytes
    blamed: dict[str, str] = field(default_factory=dict)


def recover(
    parameters: RoundParameters,
    dealer: str,
    secret: str,
    held: Mapping[str, Sequence[str]],
    shown: Mapping[str, bytes],
    fits: Callable[[bytes], bool],
) -> Recovered:
    """Return the `secret` ("mask" or "self") of a dealer, and who misbehaved.

    held: holder -> the dealer's commitments, in the order of `SECRETS`; shown: holder -> share; fits: whether
    bytes are the secret, by what the dealer published.

    Raises BrokenProtocol that names the liars where no threshold of shares gives it.
    """
    place = SECRETS.index(secret)
    # a share that does not match its commitment was changed by its holder, not by the dealer
    good = {
        site: share
        for site, share in shown.items()
        if share_commitment(parameters, dealer, site, secret, share) == held[site][place]
    }
    blamed = {site: f"showed another share of '{dealer}' than it was dealt" for site in shown.keys() - good}
    if len(good) < parameters.threshold:
        raise _lost(parameters, dealer, len(good), sorted(blamed))
    # the remaining shares are as dealt; if some sets give a wrong secret, the dealer dealt inconsistent
    # shares, and another set may still give the right one
    for tried, sites in enumerate(islice(combinations(sorted(good), parameters.threshold), MOST_TRIES)):
        recovered = shamir.combine({parameters.index(site): good[site] for site in sites})
        if fits(recovered):
            if tried:
                blamed[dealer] = "dealt shares of its secret that do not fit together"
            return Recovered(recovered, blamed)
    raise BrokenProtocol(
        f"secure aggregation, unmask: no {parameters.threshold} of the {len(good)} shares that '{dealer}' "
        f"dealt give the secret it committed itself to: '{dealer}' dealt wrong shares. The round is given "
        "up.",
        phase="unmask",
        sites=[dealer],
    )


def _lost(parameters: RoundParameters, dealer: str, good: int, liars: Sequence[str]) -> BrokenProtocol:
    return BrokenProtocol(
        f"secure aggregation, unmask: {good} right shares of '{dealer}' came back, {parameters.threshold} "
        f"are needed; wrong shares came from {', '.join(liars) or 'nobody'}. The round is given up.",
        phase="unmask",
        sites=liars,
    )
