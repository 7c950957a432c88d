# SPDX-License-Identifier: Apache-2.0
"""The server's state from which a run can go on; written after every round, all of it or nothing.

Layout: `state/round-0003/{shared,totals,rule}.safetensors, state.json}` and `state/latest.json`, which names
the folder that is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from medflare.core.errors import DataError
from medflare.core.tensor_names import with_prefix
from medflare.core.tensors import State
from medflare.wire.files import load_tensors, save_tensors, write_json

LATEST = "latest.json"


@dataclass(slots=True, kw_only=True)
class RunState:
    """The server after `rounds_done` rounds.

    Attributes:
        rule: `AggregationRule.state_dict()`: tensors, mappings of tensors, or JSON values.
        values: roster, best so far, seeds, declarations; JSON types.
    """

    rounds_done: int
    shared: State
    totals: State = field(default_factory=dict)
    rule: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def save_state(folder: Path, state: RunState) -> None:
    """Write the state and then point `latest.json` to it; older rounds are removed afterwards."""
    name = f"round-{state.rounds_done:04d}"
    scratch, final = folder / f"{name}.tmp", folder / name
    shutil.rmtree(scratch, ignore_errors=True)
    save_tensors(scratch / "shared.safetensors", state.shared)
    save_tensors(scratch / "totals.safetensors", state.totals)
    tensors, values = _flatten(state.rule)
    save_tensors(scratch / "rule.safetensors", tensors, values)
    generator = {"torch_rng": torch.get_rng_state()}
    save_tensors(scratch / "random.safetensors", generator)
    write_json(scratch / "state.json", {"rounds_done": state.rounds_done, **state.values})
    shutil.rmtree(final, ignore_errors=True)
    os.replace(scratch, final)
    write_json(folder / LATEST, {"folder": name})
    for old in folder.glob("round-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def load_state(folder: Path) -> RunState:
    """Return the last complete state in `folder`; DataError if there is none."""
    pointer = folder / LATEST
    if not pointer.exists():
        raise DataError(f"{folder}: holds no run state. Name the `state` folder of a server's run.")
    inner = folder / json.loads(pointer.read_text(encoding="utf-8"))["folder"]
    values = json.loads((inner / "state.json").read_text(encoding="utf-8"))
    rule_tensors, rule_values = load_tensors(inner / "rule.safetensors")
    return RunState(
        rounds_done=values.pop("rounds_done"),
        shared=load_tensors(inner / "shared.safetensors")[0],
        totals=load_tensors(inner / "totals.safetensors")[0],
        rule=_unflatten(rule_tensors, rule_values),
        values=values,
    )


def _flatten(rule: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    """Return tensors under `key` or `key/name`, everything else as JSON."""
    tensors: State = {}
    values: dict[str, Any] = {}
    for key, value in rule.items():
        if isinstance(value, torch.Tensor):
            tensors[key] = value
        elif (
            isinstance(value, Mapping) and value and all(isinstance(v, torch.Tensor) for v in value.values())
        ):
            tensors.update(with_prefix(value, f"{key}/"))
        else:
            values[key] = value
    return tensors, values


def _unflatten(tensors: State, values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_flatten`; keys of a rule's state hold no slash."""
    out: dict[str, Any] = dict(values)
    for name, value in tensors.items():
        key, slash, inner = name.partition("/")
        if slash:
            out.setdefault(key, {})[inner] = value
        else:
            out[key] = value
    return out
