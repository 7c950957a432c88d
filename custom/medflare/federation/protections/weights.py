# SPDX-License-Identifier: Apache-2.0
"""What an update weighs when its site multiplies it before it is summed unseen (algorithms.md 10, S+)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import AcceptsZeroWeight, factor_clip
from medflare.core.errors import UpdateError


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """How every site of a run weighs its own update.

    Attributes:
        by: as `WeightedMean` has it.
        most: what no site's weight can exceed: the scale that makes weights at most 1.
        idle: whether a site may have no examples and weigh nothing.
    """

    by: str
    most: float
    idle: bool = False

    @classmethod
    def of(cls, rule: AggregationRule, examples: Mapping[str, int], idle: bool = False) -> Weighing:
        """From the rule's settings and the training examples that the sites declared.

        idle: whether the run takes updates of no examples with any rule.
        """
        by = str(getattr(rule, "weighting", "examples"))
        largest = float(max(examples.values(), default=1)) if by != "uniform" else 1.0
        if by == "tokens":
            largest *= float(getattr(rule, "most_tokens", 1))
        most = largest * getattr(rule, "most_factor", math.exp(factor_clip(rule)))
        return cls(by=by, most=most, idle=idle or rule.capability(AcceptsZeroWeight) is not None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def weight(self, facts: Mapping[str, Any]) -> float:
        """An update's weight, not yet divided by `most`; UpdateError where the facts do not give one.

        Args:
            facts: `examples`, `factor` and `metrics`, as a site's own worker tells them.
        """
        if self.idle and _number(facts.get("examples")) == 0:
            return 0.0
        count = {
            "examples": facts.get("examples"),
            "uniform": 1.0,
            "tokens": facts.get("metrics", {}).get("tokens"),
        }.get(self.by)
        factor = facts.get("factor", 1.0)
        weight = _number(count) * _number(factor)
        if not 0 < weight <= self.most * (1 + 1e-9):
            error = UpdateError(
                f"this site's update weighs nothing, or more {self.by} than the {self.most:g} of the largest "
                "site's declaration. Its count must be what it declared before round 1."
            )
            error.add_note(f"It weighs {count!r} {self.by} times {factor!r}.")
            raise error
        return min(weight, self.most)


def _number(found: Any) -> float:
    """A plain number as it is, NaN for anything else."""
    plain = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if plain else math.nan
