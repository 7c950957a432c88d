# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients of GPT-2's linear layer, unknown to Opacus; importing this registers them."""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks, register_grad_sampler
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@register_grad_sampler(Conv1D)
def conv1d_gradients(layer: Any, activations: list[Tensor], backprops: Tensor) -> dict[nn.Parameter, Tensor]:
    """Return the gradient of each example: inputs (B, ..., in) and the output's gradient (B, ..., out)."""
    found = {}
    if layer.weight.requires_grad:  # stored as (in, out)
        found[layer.weight] = torch.einsum("n...i,n...o->nio", activations[0], backprops)
    if layer.bias.requires_grad:
        found[layer.bias] = torch.einsum("n...o->no", backprops)
    return found


SAMPLERS: dict[type[nn.Module], Any] = GradSampleHooks.GRAD_SAMPLERS
"""Layers whose per-example gradients are known."""
