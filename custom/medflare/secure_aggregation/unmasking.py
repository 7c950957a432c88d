# SPDX-License-Identifier: Apache-2.0
"""From the sum of masked vectors to the weighted mean: removes the remaining masks, checks and decodes.

Survivors' pairwise masks cancel. Left are their self-masks, and their pairwise masks with who dropped out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from medflare.secure_aggregation import key_agreement, keystream
from medflare.secure_aggregation.fixed_point import Ring
from medflare.secure_aggregation.layout import Layout, Segment
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.masking_errors import BrokenProtocol
from medflare.secure_aggregation.round_parameters import RoundParameters


@dataclass(frozen=True, slots=True)
class SecureSum:
    """The result of a round: sums over sites, and nothing of a single site.

    Attributes:
        narrow: fp32 (P,), the weighted mean. wide: fp64 (S,), weighted means, then sums.
        weight: sum of the weights. sites: whose updates are in it.
        blamed: site -> what it did wrong, where the sum was recovered in spite of it.
    """

    narrow: Tensor
    wide: Tensor
    weight: float
    sites: tuple[str, ...]
    blamed: Mapping[str, str] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """For run.json."""
        return {"sites": list(self.sites), "weight": self.weight, "blamed": dict(self.blamed)}


def unmask(
    parameters: RoundParameters,
    total: Masked,
    seeds: Mapping[str, bytes],
    dropped: Mapping[str, key_agreement.KeyPair],
    mask_keys: Mapping[str, bytes],
) -> None:
    """Remove the masks from the sum of masked vectors, in place.

    seeds: survivor -> seed of its self-mask; dropped: who shared and sent nothing -> its mask keys;
    mask_keys: survivor -> public mask key.
    """
    # every survivor added its self-mask; between two survivors pairwise masks have cancelled
    minus = [key_agreement.self_mask_keys(seed, parameters.digest, site) for site, seed in seeds.items()]
    plus: list[key_agreement.MaskKeys] = []
    # a survivor's mask with a site that dropped out has no counterpart; its sign depends on the names' order
    for absent, pair in dropped.items():
        for site in seeds:
            keys = key_agreement.pair_mask_keys(pair.agree(mask_keys[site]), parameters.digest, site, absent)
            (minus if site < absent else plus).append(keys)
    for place, vector in enumerate((total.narrow, total.wide)):
        keystream.apply(vector, [keys[place] for keys in plus], [keys[place] for keys in minus])


def decode(parameters: RoundParameters, layout: Layout, total: Masked, sites: Sequence[str]) -> SecureSum:
    """Return the mean of an unmasked sum over `sites`; `total` is used up.

    Raises BrokenProtocol that names the tensor where a sum is larger than so many sites within the bounds
    can make it: then a vector was no masked update of this round.
    """
    means, count, ring = parameters.weighted, len(sites), parameters.wide_ring
    weight = float(ring.decode(total.wide[-1]))
    if not 0 <= weight <= count * parameters.most_weight + ring.error or (
        weight == 0 and not parameters.idle
    ):
        raise _outside("the sum of the weights", sites)
    share = weight / parameters.most_weight
    scale = 1 / share if share else 0.0
    _check(total.narrow, _room(parameters.narrow_ring, share, count), layout.narrow, 0, sites)
    _check(total.wide[:means], _room(ring, share, count), layout.wide, 0, sites)
    _check(total.wide[means:-1], count * ring.most, layout.wide, means, sites)
    return SecureSum(
        parameters.narrow_ring.decode_to_float32(total.narrow, scale),
        torch.cat([ring.decode(total.wide[:means], scale), ring.decode(total.wide[means:-1])]),
        weight,
        tuple(sites),
    )


def _room(ring: Ring, share: float, count: int) -> int:
    """Return the largest encoded sum of weighted values, whose weights add up to `share`, each rounded."""
    return min(count * ring.most, int(share * ring.bound * 2.0**ring.fraction) + count)


def _check(total: Tensor, room: int, segment: Segment, start: int, sites: Sequence[str]) -> None:
    if not total.numel():
        return
    low, high = (int(value) for value in total.aminmax())
    if max(-low, high) > room:
        beyond = int(((total > room) | (total < -room)).nonzero()[0])
        raise _outside(f"the sum of tensor '{segment.name_at(start + beyond)}'", sites)


def _outside(what: str, sites: Sequence[str]) -> BrokenProtocol:
    return BrokenProtocol(
        f"secure aggregation, unmask: {what} is not what {len(sites)} updates within the declared bounds can "
        f"add up to. One of {', '.join(sites)} sent a vector that is no masked update of this round "
        "(nobody can see which). The round is given up and the state stays as it was.",
        phase="unmask",
        sites=sites,
    )
