# SPDX-License-Identifier: Apache-2.0
"""A weighted update in fixed point, as it is masked, sent and summed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.secure_aggregation.fixed_point import OutOfBound, Ring
from medflare.secure_aggregation.layout import Layout, Segment
from medflare.secure_aggregation.round_parameters import RoundParameters


@dataclass(frozen=True, slots=True)
class Masked:
    """Masked vectors that a site sends in place of its update.

    Attributes:
        round_digest: digest of the round's parameters under which it was masked.
        narrow: int32 (P,), or int16 where the parameters say so; wide: int64 (S + 1,), the weight last.
    """

    round_digest: str
    narrow: Tensor
    wide: Tensor


def empty(parameters: RoundParameters) -> Masked:
    """Return zeros in the right shapes."""
    return Masked(
        parameters.digest,
        torch.zeros(parameters.narrow, dtype=parameters.narrow_ring.dtype),
        torch.zeros(parameters.wide + 1, dtype=parameters.wide_ring.dtype),
    )


def encode(
    parameters: RoundParameters, layout: Layout, narrow: Tensor, wide: Tensor, weight: float
) -> Masked:
    """Encode an update in fixed point, not masked yet: its means times weight / most_weight, sums, weight.

    Nothing is clipped.

    Args:
        narrow: fp32 (P,); wide: fp64 (S,), as `Layout.pack` made them.

    Raises:
        UpdateError: weight or vectors are not as agreed, or a value is beyond the bound; names the tensor.
    """
    if not 0 <= weight <= parameters.most_weight or (weight == 0 and not parameters.idle):
        raise UpdateError(f"weight is {weight:g}; expected above 0, at most {parameters.most_weight:g}.")
    lengths = (tuple(narrow.shape), tuple(wide.shape))
    if lengths != ((parameters.narrow,), (parameters.wide,)):
        raise UpdateError(
            f"vectors have shapes {lengths}; expected ({parameters.narrow},) and ({parameters.wide},)."
        )
    out = empty(parameters)
    share, means = weight / parameters.most_weight, parameters.weighted
    _encode(parameters.narrow_ring, out.narrow, narrow, share, layout.narrow, 0)
    _encode(parameters.wide_ring, out.wide[:means], wide[:means], share, layout.wide, 0)
    _encode(parameters.wide_ring, out.wide[means:-1], wide[means:], 1.0, layout.wide, means)
    parameters.wide_ring.encode_into(out.wide[-1:], torch.tensor([weight], dtype=torch.float64))
    return out


def _encode(ring: Ring, out: Tensor, values: Tensor, share: float, segment: Segment, start: int) -> None:
    try:
        ring.encode_into(out, values, share)
    except OutOfBound as found:
        name = segment.name_at(start + found.position)
        raise UpdateError(
            f"tensor '{name}' has a value beyond the bound of {ring.bound:g} that this job declares for "
            "secure aggregation. Nothing was sent; the value is in this site's worker.log only. Whoever "
            "submits the job sets a smaller learning rate, or a larger protection_settings.bound."
        ) from found
