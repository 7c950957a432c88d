# SPDX-License-Identifier: Apache-2.0
"""The moments of an optimiser as named tensors, so that they survive rounds and restarts."""

from __future__ import annotations

import torch

from medflare.core.tensors import State


def moments(optimiser: torch.optim.Optimizer, prefix: str) -> State:
    """Return first and second moments and step counts by position of the parameter."""
    tensors: State = {}
    for index, slot in optimiser.state_dict()["state"].items():
        for name, value in slot.items():
            tensors[f"{prefix}.{index}.{name}"] = torch.as_tensor(value).detach().cpu().clone()
    return tensors


def restore_moments(optimiser: torch.optim.Optimizer, tensors: State, prefix: str) -> None:
    """Put back what `moments` returned; parameters that never took a step stay without moments."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix + "."):
            index, name = key[len(prefix) + 1 :].split(".", 1)
            state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
