# SPDX-License-Identifier: Apache-2.0
"""The weight of an update whose site multiplies it before it is summed unseen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import AcceptsZeroWeight, factor_clip
from medflare.core.errors import UpdateError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateWeighting:
    """Weighting by which every site of a run scales its own update.

    Attributes:
        by: as `WeightedMean` has it: examples, uniform or tokens.
        max_weight: what no site's weight can exceed: the scale that makes weights at most 1.
        zero_weight: whether a site may have no examples and weigh nothing.
    """

    by: str
    max_weight: float
    zero_weight: bool = False

    @classmethod
    def of(
        cls, rule: AggregationRule, examples: Mapping[str, int], zero_weight: bool = False
    ) -> UpdateWeighting:
        """Return the weighting of a rule's settings and the training examples that the sites declared.

        Args:
            zero_weight: whether the run takes updates of no examples with any rule.
        """
        weight = rule.site_weight
        largest = (
            1.0 if weight.unit == "uniform" else max(examples.values(), default=1) * weight.most_per_example
        )
        factor = math.exp(factor_clip(rule)) if weight.most_factor is None else weight.most_factor
        return cls(
            by=weight.unit,
            max_weight=largest * factor,
            zero_weight=zero_weight or rule.capability(AcceptsZeroWeight) is not None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON types, under the keys that requests and checkpoints have always had."""
        return {"by": self.by, "most": self.max_weight, "idle": self.zero_weight}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UpdateWeighting:
        """Return what `to_json` wrote."""
        return cls(by=data["by"], max_weight=data["most"], zero_weight=data["idle"])

    def weight(self, facts: Mapping[str, Any]) -> float:
        """Return an update's weight, not yet divided by `max_weight`.

        Args:
            facts: `examples`, `factor` and `metrics`, as a site's own worker tells them.

        A site that counts for more than `max_weight` counts with it: the job limits one site's share.

        Raises:
            UpdateError: the facts give no weight.
        """
        if self.zero_weight and _number(facts.get("examples")) == 0:
            return 0.0
        count = {
            "examples": facts.get("examples"),
            "uniform": 1.0,
            "tokens": facts.get("metrics", {}).get("tokens"),
        }.get(self.by)
        factor = facts.get("factor", 1.0)
        weight = _number(count) * _number(factor)
        if not 0 < weight < math.inf:
            error = UpdateError(f"this site's update weighs nothing: it has no number of {self.by}.")
            error.add_note(f"It weighs {count!r} {self.by} times {factor!r}.")
            raise error
        return min(weight, self.max_weight)


def _number(value: Any) -> float:
    """Return a plain number as it is, NaN for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain else math.nan
