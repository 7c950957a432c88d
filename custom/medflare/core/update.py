# SPDX-License-Identifier: Apache-2.0
"""What a site returns for a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from medflare.core.tensors import State


@dataclass(slots=True, kw_only=True)
class Update:
    """What a site returns for a round: differences of shared tensors, counts and declared sums.

    Attributes:
        delta: fp32 where it was computed; a rule sees it in the dtype in which it travelled.
        factor: multiplies `examples` as the weight of the update; other than 1 only where the plan's hints
            ask a site to score itself (`learners.influence`).
    """

    delta: State
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    sums: State = field(default_factory=dict)
    factor: float = 1.0
