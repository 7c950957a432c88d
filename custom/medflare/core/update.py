# SPDX-License-Identifier: Apache-2.0
"""The update a site returns for a round, and its form in a message: tensors and JSON facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.metrics import as_metric
from medflare.core.tensor_names import SUM_PREFIX, split_by_prefix, with_prefix
from medflare.core.tensors import State


@dataclass(slots=True, kw_only=True)
class Update:
    """Result of a site's round: differences of shared tensors, counts and declared sums.

    Attributes:
        delta: trained minus received value of each shared tensor; fp32 where it was computed, and in the
            dtype in which it travelled where a rule sees it.
        examples: number of training examples it is of; the update's weight.
        metrics: numbers of local training by name, for instance `loss`.
        sums: declared auxiliary sums, which the server adds over all sites.
        factor: multiplies `examples` as the weight of the update; other than 1 only where the plan's hints
            ask a site to score itself (`learners.client_terms.influence`).
    """

    delta: State
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    sums: State = field(default_factory=dict)
    factor: float = 1.0

    def to_message(self) -> tuple[State, dict[str, Any]]:
        """Return the update as it travels.

        Returns:
            (tensors: `delta` under its names, sums under `sum:<name>`; facts: `examples`, `metrics`, and
            `factor` where it is not 1). No copies are made.
        """
        facts: dict[str, Any] = {"examples": self.examples, "metrics": self.metrics}
        if self.factor != 1:
            facts["factor"] = self.factor
        return {**self.delta, **with_prefix(self.sums, SUM_PREFIX)}, facts

    @classmethod
    def from_message(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Update:
        """Return the update in a decompressed message; other facts of the message are ignored.

        Raises:
            UpdateError: `examples` is missing or no count, a metric or the factor is no number. Names, shapes
                and values of the tensors are checked against the declaration, not here.

        A metric larger than anything measured becomes NaN, as one that the site could not measure.
        """
        examples, metrics, factor = facts.get("examples"), facts.get("metrics", {}), facts.get("factor", 1.0)
        if isinstance(examples, bool) or not isinstance(examples, int) or examples < 0:
            raise UpdateError(f"examples {examples!r}, expected a count of training examples.")
        if not isinstance(metrics, Mapping) or not all(_is_number(value) for value in metrics.values()):
            raise UpdateError(f"metrics {metrics!r}, expected numbers by name.")
        if not _is_number(factor) or not 0 < factor < math.inf:
            raise UpdateError(f"factor {factor!r}, expected a positive number.")
        delta, sums = split_by_prefix(tensors, SUM_PREFIX)
        numbers = {name: as_metric(value) for name, value in metrics.items()}
        return cls(delta=delta, examples=examples, metrics=numbers, sums=sums, factor=float(factor))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
