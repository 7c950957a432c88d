# SPDX-License-Identifier: Apache-2.0
"""AdamW whose moments survive rounds and restarts, and the one cosine over all rounds."""

from __future__ import annotations

import math

import torch
from torch import nn

FIRST = 0.02
"""Share of the full rate that the very first step of a warm-up has, so that it learns too."""


def cosine(progress: float, warmup: float = 0.0) -> float:
    """Return the rate's factor at `progress` in [0, 1] of all rounds; linear warm-up over the first share."""
    if progress < warmup:
        return max(progress / warmup, FIRST)
    return 0.5 * (1 + math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1.0)))


def scale_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's rate to its own `base_lr` times `factor`."""
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor


def adamw(groups: list[tuple[list[nn.Parameter], float]], weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW over (parameters, base rate) pairs."""
    return torch.optim.AdamW(
        [{"params": params, "lr": rate, "base_lr": rate} for params, rate in groups if params],
        weight_decay=weight_decay,
        fused=False,
        foreach=True,
    )
