# SPDX-License-Identifier: Apache-2.0
"""AdamW whose moments survive rounds and restarts, and the one cosine over all rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FIRST = 0.02
"""Share of the full rate that the very first step of a warm-up has, so that it learns too."""


def cosine(progress: float, warmup: float = 0.0) -> float:
    """Return the rate's factor at `progress` in [0, 1] of all rounds; linear warm-up over the first share."""
    if progress < warmup:
        return max(progress / warmup, FIRST)
    return 0.5 * (1 + math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1.0)))


def rate_factor(schedule: str, progress: float, warmup: float) -> float:
    """Return the rate's factor at `progress` in [0, 1]: of a cosine, or constant after the warm-up."""
    return cosine(progress, warmup) if schedule == "cosine" or progress < warmup else 1.0


@dataclass(frozen=True, slots=True)
class CosinePart:
    """A round's part of a warm-up and a cosine: all of it, or its share of the run's.

    Attributes:
        begin, end: progress in [0, 1] along the cosine before and after the round.
        warmup: share of the whole cosine with a rising rate.
    """

    begin: float = 0.0
    end: float = 1.0
    warmup: float = 0.0

    @property
    def is_whole(self) -> bool:
        return (self.begin, self.end) == (0.0, 1.0)

    def factor(self, progress: float) -> float:
        """Return the rate's factor at `progress` in [0, 1] of the round."""
        return cosine(self.begin + progress * (self.end - self.begin), self.warmup)


def take_step(optimiser: torch.optim.Optimizer, loss: Tensor, clip_norm: float | None) -> None:
    """Take one step down a loss; gradients of a larger norm than `clip_norm` are shortened to it."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if clip_norm is not None:
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, clip_norm)
    optimiser.step()


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


def adam_amsgrad(groups: list[tuple[list[nn.Parameter], float]], weight_decay: float) -> torch.optim.Adam:
    """Return Adam with AMSGrad over (parameters, base rate) pairs, as R2Gen's code trains."""
    return torch.optim.Adam(
        [{"params": params, "lr": rate, "base_lr": rate} for params, rate in groups if params],
        weight_decay=weight_decay,
        amsgrad=True,
        foreach=True,
    )
