# SPDX-License-Identifier: Apache-2.0
"""The plan of one round, which the server sends to a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from medflare.core.hints import RoundHints


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """Request of the server to a site for one round.

    Attributes:
        round: 0-based index; rounds: how many there will be.
        steps: optimiser steps on mini-batches, or None to let `fraction` decide.
        fraction: share of the local training examples to visit; consecutive slices of a per-epoch
            shuffle. None with `steps` None means one epoch.
        seed: of the run; a learner derives its own from it, its site and the round.
        limit: at most this many studies in an evaluation of this round; None for all.
        hints: what rules and controllers tell sites beyond the fields above.
        totals: sums over the accepted updates' `sums` of the previous round, for methods that declare any.
    """

    round: int
    rounds: int
    steps: int | None = None
    fraction: float | None = None
    seed: int = 0
    limit: int | None = None
    hints: RoundHints = field(default_factory=RoundHints)
    totals: Mapping[str, Tensor] = field(default_factory=dict)
