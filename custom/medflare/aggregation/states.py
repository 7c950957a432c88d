# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on states that the rules share; accumulators are fp32 or better, whatever the state's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from medflare.learners.base import State

PIECE = 1 << 18
"""Values that are widened together."""


def accumulator_dtype(value: Tensor) -> torch.dtype:
    """fp32 for half precision, the own dtype where it is better, float64 for counters."""
    return torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else torch.float64


def zeros(state: State) -> State:
    """An empty accumulator for every tensor of a state."""
    return {name: torch.zeros(value.shape, dtype=accumulator_dtype(value)) for name, value in state.items()}


def add_scaled(total: State, delta: State, weight: float) -> None:
    """total += weight · delta, in place.

    A delta of another dtype is widened in pieces that stay in the processor's cache: a copy of a whole
    tensor in fp32 would cost more than the sum itself.
    """
    for name, sum_ in total.items():
        value = delta[name]
        if value.dtype == sum_.dtype:
            sum_.add_(value, alpha=weight)
            continue
        flat, other = sum_.view(-1), value.reshape(-1)
        for start in range(0, flat.numel(), PIECE):
            piece = slice(start, start + PIECE)
            flat[piece].add_(other[piece].to(flat.dtype), alpha=weight)


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
