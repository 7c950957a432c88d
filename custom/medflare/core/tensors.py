# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on states that the rules share; accumulators are fp32 or better, whatever the state's dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medflare.core.learner import State

PIECE = 1 << 18
"""Values that are widened together."""


def accumulator_dtype(value: Tensor) -> torch.dtype:
    """fp32 for half precision, the own dtype where it is better, float64 for counters."""
    return torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else torch.float64


def zeros(state: State) -> State:
    """An empty accumulator for every tensor of a state."""
    return {name: torch.zeros(value.shape, dtype=accumulator_dtype(value)) for name, value in state.items()}


def add_scaled(total: State, delta: State, weight: float) -> None:
    """total += weight · delta, in place."""
    add_to_each([(total, weight)], delta)


def add_to_each(sums: Sequence[tuple[State, float]], delta: State) -> None:
    """total += weight · delta for each (total, weight), in place.

    The delta is widened, and read once for all sums, in pieces that stay in the processor's cache: a copy of
    a whole tensor in fp32 would cost more than the sum itself.
    """
    for name, first in sums[0][0].items():
        value = delta[name]
        if len(sums) == 1 and value.dtype == first.dtype:
            first.add_(value, alpha=sums[0][1])
            continue
        flat, totals = value.reshape(-1), [(total[name].view(-1), weight) for total, weight in sums]
        for start in range(0, flat.numel(), PIECE):
            part = slice(start, start + PIECE)
            wide = flat[part].to(first.dtype)
            for total, weight in totals:
                total[part].add_(wide, alpha=weight)


def squares(value: Tensor, less: Tensor | None = None) -> float:
    """Σ (value − less)² in float64, piece by piece in the processor's cache."""
    flat, other = value.reshape(-1), None if less is None else less.reshape(-1)
    total = 0.0
    for start in range(0, flat.numel(), PIECE):
        part = slice(start, start + PIECE)
        wide = flat[part].double()
        if other is not None:
            wide -= other[part].double()
        total += float(wide.dot(wide))
    return total


def settled(state: State, change: State) -> State:
    """`moved` for a change that nobody needs any more: it is used up, so no third model is in memory."""
    out: State = {}
    for name, value in state.items():
        total = change.pop(name).add_(value)
        out[name] = (total if value.is_floating_point() else total.round()).to(value.dtype)
    return out


def moved(state: State, change: State) -> State:
    """state + change, in the dtypes of `state`; counters are rounded, not cut."""
    out: State = {}
    for name, value in state.items():
        total = value.to(accumulator_dtype(value)) + change[name].to(accumulator_dtype(value))
        out[name] = (total if value.is_floating_point() else total.round()).to(value.dtype)
    return out
