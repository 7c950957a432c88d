# SPDX-License-Identifier: Apache-2.0
"""Completes an adapter on the server with the tensors that were never communicated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from medflare.models.adapters.lora import seeded_a
from medflare.models.adapters.vera import VERA_A, VERA_B, vera_projections


def seed_generated(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Tensor]:
    """Return the tensors that were not communicated: VeRA's A and B or LoRA's A from the seed, LoRA's B = 0.

    Args:
        shapes: name -> shape, as in `AdapterSet.not_communicated`.
        seed: of the run.
    """
    if VERA_A in shapes:
        return vera_projections(tuple(shapes[VERA_A]), tuple(shapes[VERA_B]), seed)
    return {
        name: seeded_a(name, tuple(shape), seed) if ".lora_A" in name else torch.zeros(tuple(shape))
        for name, shape in shapes.items()
    }
