# SPDX-License-Identifier: Apache-2.0
"""Named tensors: what a state is, how it is checked, and arithmetic on states.

Accumulators are fp32 or better, whatever the dtype of the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import UpdateError

State = dict[str, Tensor]
SharedSpec = dict[str, tuple[tuple[int, ...], torch.dtype]]

PIECE = 1 << 18
"""Values that are widened together."""


def without_prefix(tensors: State, prefix: str) -> State:
    """Return the tensors whose names start with `prefix`, without it."""
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def flatten(nested: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    """Return tensors under `key`, those of an inner mapping of tensors under `key/name`, and what is neither.

    Args:
        nested: keys without a slash.
    """
    tensors: State = {}
    values: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Tensor):
            tensors[key] = value
        elif isinstance(value, Mapping) and value and all(isinstance(v, Tensor) for v in value.values()):
            tensors |= {f"{key}/{name}": inner for name, inner in value.items()}
        else:
            values[key] = value
    return tensors, values


def unflatten(tensors: State, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of `flatten`."""
    out: dict[str, Any] = dict(values)
    for name, value in tensors.items():
        key, slash, inner = name.partition("/")
        if slash:
            out.setdefault(key, {})[inner] = value
        else:
            out[key] = value
    return out


def accumulator_dtype(value: Tensor) -> torch.dtype:
    """Return fp32 for half precision, the dtype itself where it is better, float64 for counters."""
    return torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else torch.float64


def zeros(state: State) -> State:
    """Return an empty accumulator for every tensor of a state."""
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
    """Return Σ (value − less)² in float64, piece by piece in the processor's cache."""
    flat, other = value.reshape(-1), None if less is None else less.reshape(-1)
    total = 0.0
    for start in range(0, flat.numel(), PIECE):
        part = slice(start, start + PIECE)
        wide = flat[part].double()
        if other is not None:
            wide -= other[part].double()
        total += float(wide.dot(wide))
    return total


def apply_delta(state: State, delta: State) -> State:
    """Return state + delta, computed in accumulator precision and cast back to the dtypes of `state`.

    Args:
        delta: tensors of the same names and shapes; counters are rounded, not cut.
    """
    out: State = {}
    for name, value in state.items():
        total = value.to(accumulator_dtype(value)) + delta[name].to(accumulator_dtype(value))
        out[name] = (total if value.is_floating_point() else total.round()).to(value.dtype)
    return out


def apply_delta_in_place(state: State, delta: State) -> State:
    """Return state + delta in the memory of `delta`, which is emptied; `state` is not modified.

    For a delta that nobody needs any more, in accumulator dtypes: no third model is in memory.
    """
    out: State = {}
    for name, value in state.items():
        total = delta.pop(name).add_(value)
        out[name] = (total if value.is_floating_point() else total.round()).to(value.dtype)
    return out


def check_state(state: Mapping[str, Tensor], spec: SharedSpec, whose: str) -> None:
    """Raises UpdateError that names every tensor of `state` that `spec` does not allow.

    Checked: the set of names, shapes, and that every value is finite. Dtype may differ (bf16 on the wire).
    """
    problems = [f"unexpected tensor '{name}'" for name in sorted(set(state) - set(spec))]
    problems += [f"missing tensor '{name}'" for name in sorted(set(spec) - set(state))]
    for name in sorted(set(state) & set(spec)):
        shape = spec[name][0]
        if tuple(state[name].shape) != tuple(shape):
            problems.append(f"'{name}' has shape {tuple(state[name].shape)}, expected {tuple(shape)}")
        elif not finite(state[name]):
            problems.append(f"'{name}' has values that are not finite")
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise UpdateError(f"{whose}: {shown}.")


def finite(value: Tensor) -> bool:
    """Return whether every value is finite."""
    # NaN passes through to minimum and maximum; a mask of all values would take ten times as long.
    if not value.is_floating_point() or not value.numel():
        return True
    return all(math.isfinite(float(edge)) for edge in torch.aminmax(value))


def add_sums(parts: Sequence[State]) -> State:
    """Return the totals of several sites' sums, added in the order of the parts."""
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
