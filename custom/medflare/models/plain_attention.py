# SPDX-License-Identifier: Apache-2.0
"""Attention written out for bf16 on processors, where the backward pass of PyTorch's fused one is slow.

A mini-batch of FedMRG's embedded decoder takes four fifths of the processor time (`benchmarks/dmb_step.py`).
In any other precision, and on a GPU, the fused one is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "medflare_plain"


def use_plain_attention(model: Any) -> bool:
    """Let a decoder use it, and return whether it does; otherwise the decoder is left as it was."""
    if model.config._attn_implementation != "sdpa" or model.config.to_dict().get("attention_dropout"):
        return False
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return True


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, Q, heads, D), as transformers asks for it.

    Args:
        query: (B, heads, Q, D); key, value: (B, groups, T, D).
        attention_mask: (B, 1, Q, T), True where a query sees a key; None for all earlier ones.
    """
    if query.device.type != "cpu" or query.dtype != torch.bfloat16:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        fused: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return fused
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return written_out(query, key, value, attention_mask, scale).transpose(1, 2), None


def written_out(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """Return softmax(Q Kᵀ · scale) V of shape (B, heads, Q, D); shapes as in `_attention`."""
    rows, heads, count, width = query.shape
    groups, length = key.shape[1], key.shape[2]
    grouped = (query * scale).reshape(rows, groups, -1, width)  # (B, groups, heads/groups·Q, D)
    scores = (grouped @ key.transpose(-1, -2)).view(rows, heads, count, length)
    if visible is None:
        visible = torch.ones(count, length, dtype=torch.bool).tril(length - count)
    # Not -inf: the row of a padding token sees nothing, and must not become NaN.
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    shares = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    mixed = shares.view(rows, groups, -1, length) @ value
    return mixed.view(rows, heads, count, width)
