# SPDX-License-Identifier: Apache-2.0
"""Weight of an update that was made for an earlier state (FedBuff: Nguyen et al., AISTATS 2022)."""

from __future__ import annotations

import torch

from medflare.core.tensors import State

STALENESS_POWER = 0.5


def staleness_weight(age: int) -> float:
    """Return (1 + s)^-1/2, the share of the change of an update that is s rounds old."""
    return (1 + age) ** -STALENESS_POWER


def scaled(delta: State, weight: float) -> State:
    """Return a change of which only this share counts, at least in fp32; whole numbers stay as they are."""
    if weight == 1:
        return delta
    return {
        name: value.to(torch.promote_types(value.dtype, torch.float32)) * weight
        if value.is_floating_point()
        else value
        for name, value in delta.items()
    }
