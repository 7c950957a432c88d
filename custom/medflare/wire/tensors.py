# SPDX-License-Identifier: Apache-2.0
"""Names, sizes, digests and files of tensors. No FLARE here, the worker process uses it too."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State

SUM, TOTAL = "sum:", "total:"
"""Prefixes of auxiliary sums on the way up, and of their totals on the way down."""


def byte_count(state: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors' values, as they are."""
    return sum(value.numel() * value.element_size() for value in state.values())


def digest(state: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and values, in the order of names."""
    total = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def with_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """The same tensors under `prefix + name`."""
    return {prefix + name: value for name, value in state.items()}


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> tuple[State, State]:
    """(tensors whose names do not start with `prefix`, the others with the prefix taken off)."""
    plain = {name: value for name, value in state.items() if not name.startswith(prefix)}
    inner = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    return plain, inner


def spec_to_json(spec: SharedSpec) -> dict[str, list[Any]]:
    """`{name: [shape, dtype]}` in JSON types."""
    return {name: [list(shape), str(dtype).removeprefix("torch.")] for name, (shape, dtype) in spec.items()}


def spec_from_json(data: Mapping[str, Any]) -> SharedSpec:
    """The inverse of `spec_to_json`."""
    return {name: (tuple(shape), getattr(torch, dtype)) for name, (shape, dtype) in data.items()}


def plan_to_json(plan: RoundPlan) -> dict[str, Any]:
    """A plan without its totals, which travel as tensors."""
    values = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
    values.pop("totals")
    return {**values, "hints": dict(plan.hints)}


def plan_from_json(data: Mapping[str, Any], totals: State) -> RoundPlan:
    """The inverse of `plan_to_json`."""
    return RoundPlan(**{**data, "totals": totals})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any] | None = None) -> None:
    """Writes a safetensors file atomically; `values` (JSON) goes into its header under 'values'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    save_file(plain, scratch, metadata={"values": json.dumps(dict(values or {}))})
    os.replace(scratch, path)


def load_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """What `save_tensors` wrote."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        values: dict[str, Any] = json.loads((file.metadata() or {}).get("values", "{}"))
    return tensors, values


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Writes JSON atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, path)
