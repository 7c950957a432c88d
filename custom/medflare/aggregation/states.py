# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on states that the rules share; accumulators are fp32 or better, whatever the state's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from medflare.learners.base import State


def accumulator_dtype(value: Tensor) -> torch.dtype:
    """fp32 for half precision, the own dtype where it is better, float64 for counters."""
    return torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else torch.float64


def zeros(state: State) -> State:
    """An empty accumulator for every tensor of a state."""
    return {name: torch.zeros(value.shape, dtype=accumulator_dtype(value)) for name, value in state.items()}


def moved(state: State, change: State) -> State:
    """state + change, in the dtypes of `state`; counters are rounded, not cut."""
    out: State = {}
    for name, value in state.items():
        total = value.to(accumulator_dtype(value)) + change[name].to(accumulator_dtype(value))
        out[name] = (total if value.is_floating_point() else total.round()).to(value.dtype)
    return out
