# SPDX-License-Identifier: Apache-2.0
"""AdamW whose moments survive rounds and restarts, and the one cosine over all rounds."""

from __future__ import annotations

import math

import torch
from torch import nn

from medflare.core.tensors import State

FIRST = 0.02
"""Share of the full rate that the very first step of a warm-up has, so that it learns too."""


def cosine(progress: float, warmup: float = 0.0) -> float:
    """Learning-rate factor at `progress` in [0, 1] of all rounds; linear warm-up over the first share."""
    if progress < warmup:
        return max(progress / warmup, FIRST)
    return 0.5 * (1 + math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1.0)))


def scale_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets every group's rate to its own `base_lr` times `factor`."""
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor


def adamw(groups: list[tuple[list[nn.Parameter], float]], weight_decay: float) -> torch.optim.AdamW:
    """AdamW over (parameters, base rate) pairs."""
    return torch.optim.AdamW(
        [{"params": params, "lr": rate, "base_lr": rate} for params, rate in groups if params],
        weight_decay=weight_decay,
        fused=False,
        foreach=True,
    )


def moments(optimiser: torch.optim.Optimizer, prefix: str) -> State:
    """First and second moments and step counts by position, for `restore_moments`."""
    found: State = {}
    for index, slot in optimiser.state_dict()["state"].items():
        for name, value in slot.items():
            found[f"{prefix}.{index}.{name}"] = torch.as_tensor(value).detach().cpu().clone()
    return found


def restore_moments(optimiser: torch.optim.Optimizer, tensors: State, prefix: str) -> None:
    """Puts back what `moments` returned; parameters that never took a step stay without moments."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix + "."):
            index, name = key[len(prefix) + 1 :].split(".", 1)
            state.setdefault(int(index), {})[name] = value
    whole = optimiser.state_dict()
    optimiser.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
