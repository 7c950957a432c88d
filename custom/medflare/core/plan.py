# SPDX-License-Identifier: Apache-2.0
"""What the server asks of a site in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What the server asks of a site in one round.

    Attributes:
        round: 0-based index; rounds: how many there will be.
        steps: optimiser steps on mini-batches, or None to let `fraction` decide.
        fraction: share of the local training examples to visit; consecutive slices of a per-epoch
            shuffle (algorithms.md 2.3). None with `steps` None means one epoch.
        seed: of the run; a learner derives its own from it, its site and the round.
        limit: at most this many studies in an evaluation of this round; None for all.
        hints: further values a controller sends to a method, JSON types only. Always present from a
            federation: `site_index` and `sites` (position of this site in the roster, and its size) and
            `summed` (positions of the sites whose sums are in `totals`). `loss_only` in an evaluation
            that needs nothing but `loss` (the server's scoring of updates), `probe` in one that needs it of
            so many examples alone, which the round draws (`order.drawn`). What a rule asks of training stands
            under the keys of `learners.terms.TERMS`.
        totals: sums over the accepted updates' `sums` of the previous round, for methods that declare any.
    """

    round: int
    rounds: int
    steps: int | None = None
    fraction: float | None = None
    seed: int = 0
    limit: int | None = None
    hints: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Tensor] = field(default_factory=dict)
