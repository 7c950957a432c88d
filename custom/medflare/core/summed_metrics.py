# SPDX-License-Identifier: Apache-2.0
"""Metrics as sums over sites, of which no single site's can be read: the arithmetic of both sides.

A site with n examples and value x of a metric adds (n x, n); a site without a finite value adds zeros. Beside
the metrics of a group stand (n, 1), of a site that measured anything at all, so that a reader of the totals
knows of how many examples and sites they are, and which metrics all of these sites have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch

from medflare.core.errors import UpdateError
from medflare.core.metrics import MetricNames
from medflare.core.run_record import AdapterKind
from medflare.core.tensors import SharedSpec, State

VALIDATION, TEST = "val", "test"
"""Exchanges of such sums, by the split that is measured."""
EXCHANGES = (VALIDATION, TEST)
PAIR = ((2,), torch.float64)
MOST = float(1 << 30)
"""Largest absolute value of n x: the bound of a sum's values under masks (`RoundParameters.wide_bound`)."""


def adapter_group(adapter: str) -> str:
    """Return the name of the group of one adapter's test metrics."""
    return f"{TEST}:{adapter}"


def adapter_of(group: str) -> AdapterKind:
    """Return the adapter of a group of test metrics.

    Raises:
        UpdateError: a site declared another one.
    """
    adapter = group.removeprefix(f"{TEST}:")
    for known_adapter in get_args(AdapterKind):
        if adapter == known_adapter:
            return known_adapter
    raise UpdateError(f"sums of adapter '{adapter}', expected one of {', '.join(get_args(AdapterKind))}.")


def exchange_specs(names: MetricNames) -> dict[str, SharedSpec]:
    """Return, by exchange, the names, shapes and dtypes of the sums of these metrics."""
    tested = {adapter_group(adapter): metrics for adapter, metrics in names.tested.items()}
    return {VALIDATION: _spec({VALIDATION: names.validation}), TEST: _spec(tested)}


def groups_of(spec: SharedSpec, exchange: str) -> list[str]:
    """Return the groups of metrics in an exchange's sums: one of a validation, one of each tested adapter."""
    return [name for name in sorted(spec) if name.count(":") == (exchange == TEST)]


def zeros(spec: SharedSpec) -> State:
    """Return the sums of a site that measured nothing."""
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in spec.items()}


def add_metrics(sums: State, group: str, values: Mapping[str, float], examples: int) -> list[str]:
    """Put a site's metrics of one group into its sums.

    Args:
        sums: zeros of the declared names; changed.
        values: metric -> value. What is not finite, or too large for a sum, counts as not measured.
        examples: n, the weight; with 0 nothing is put in.

    Returns:
        The metrics that stay at the site because no sum of theirs was declared.
    """
    undeclared = [name for name in values if f"{group}:{name}" not in sums]
    if not values or examples <= 0:
        return undeclared
    if group in sums:
        sums[group] = torch.tensor([float(examples), 1.0], dtype=torch.float64)
    for name, value in values.items():
        product = float(examples) * value
        if name not in undeclared and math.isfinite(product) and abs(product) <= MOST:
            sums[f"{group}:{name}"] = torch.tensor([product, float(examples)], dtype=torch.float64)
    return undeclared


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedMetrics:
    """Means and counts from the totals of one group.

    Attributes:
        examples, sites: of how many examples and sites they are.
        means: metric -> mean weighted by examples, of metrics that every one of these sites has.
    """

    examples: int
    sites: int
    means: Mapping[str, float] = field(default_factory=dict)


def read_totals(totals: State, group: str) -> SummedMetrics:
    """Return what the totals of a group say; counts come back from fixed point and are rounded."""
    examples, sites = (round(count) for count in totals[group].tolist())
    prefix, means = f"{group}:", {}
    for name, pair in sorted(totals.items()):
        if name.startswith(prefix):
            total, count = pair.tolist()
            if examples > 0 and round(count) == examples:
                means[name.removeprefix(prefix)] = total / examples
    return SummedMetrics(examples=examples, sites=sites, means=means)


def _spec(groups: Mapping[str, Sequence[str]]) -> SharedSpec:
    return {name: PAIR for group, metrics in groups.items() for name in _names(group, metrics)}


def _names(group: str, metrics: Iterable[str]) -> list[str]:
    return [group, *(f"{group}:{metric}" for metric in metrics)]
