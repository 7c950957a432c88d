# SPDX-License-Identifier: Apache-2.0
"""Clip of the norm of updates at the server: no site moves the model farther than the typical one.

An update that is ten times as long as the others, or minus ten times, counts in a mean as ten sites. Scaled
down to the median of the norms it counts as one. A site that lies about its direction alone is not stopped:
that is what the robust rules are for.

Source: Sun et al., Can You Really Backdoor Federated Learning?, 2019 (norm thresholding); the median of the
round's own norms is the threshold, so that nothing has to be tuned to the size of updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low
from types import MappingProxyType
from typing import Literal

from medflare.aggregation.base import RuleFacts, RuleSettings
from medflare.core.tensors import State, squares


class NormClipSettings(RuleSettings):
    """Settings of rules that can clip updates."""

    norm_clip: Literal["median"] | None = None
    """"median": an update longer than the median of the round's norms is scaled down to it; the server then
    keeps all updates of a round. null: none is scaled."""

    @property
    def clips_norms(self) -> bool:
        return self.norm_clip is not None


def clip_factors(deltas: Mapping[str, State]) -> tuple[dict[str, float], float]:
    """Return (site -> factor of its update, the median norm).

    The lower median, so that it is an honest site's norm, or less, while fewer than half are hostile.

    Args:
        deltas: site -> update. The norm is over all tensors together, in float64.
    """
    norms = {site: math.sqrt(sum(map(squares, delta.values()))) for site, delta in deltas.items()}
    most = median_low(norms.values())
    return {site: min(1.0, most / norm) if norm > 0 else 1.0 for site, norm in norms.items()}, most


def needs_each_update(facts: RuleFacts) -> RuleFacts:
    """Return the facts of a rule that clips updates, which must therefore see and keep each one."""
    if facts.needs == "individual":
        return replace(facts, streams=False)
    without = MappingProxyType({**facts.sum_with, "norm_clip": None})
    instead = 'rule_settings {"norm_clip": null}, which needs a sum alone'
    return replace(facts, needs="individual", streams=False, sum_with=without, instead=instead)
