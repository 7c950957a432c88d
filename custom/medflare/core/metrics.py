# SPDX-License-Identifier: Apache-2.0
"""Numbers of a split together with how many examples they are about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medflare.core.run_record import AdapterKind

MOST_METRIC = 1e12
"""No metric of a site is larger: what is would make a mean over sites that site's alone, or infinite."""


def as_metric(value: Any) -> float:
    """Return what a site sent as a number; NaN where it is none, or larger than anything measured."""
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        return math.nan
    return number if abs(number) <= MOST_METRIC else math.nan


class Metrics(dict[str, float]):
    """Metric -> value, as a learner measured them on a split.

    Args:
        values: the numbers.
        examples: of how many examples the number over the fewest of them is; 0 without any number. A site's
            egress compares it with the hospital's `min_examples`, and it does not leave the site.
    """

    def __init__(self, values: Mapping[str, float] | None = None, examples: int = 0) -> None:
        super().__init__(values or {})
        self.examples = examples if self else 0

    def joined(self, other: Metrics) -> Metrics:
        """Return both sets of numbers, over the smaller of both counts."""
        counts = [each.examples for each in (self, other) if each]
        return Metrics({**self, **other}, min(counts, default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Names of what a learner can measure, the same at every site of a job whatever its data hold.

    Under a protection only these leave, summed over the sites; a number of another name stays at its site.

    Attributes:
        validation: of `Learner.evaluate`.
        tested: adapter -> names of `Learner.finish`.
    """

    validation: Sequence[str]
    tested: Mapping[AdapterKind, Sequence[str]]
