# SPDX-License-Identifier: Apache-2.0
"""Attention of frozen decoders on processors, under a name of its own in transformers' registry.

It is PyTorch's, as transformers calls it, with three differences. Rows that share their beginnings are
computed along them (`packed_batch`). The few new tokens of a pass of generation are computed by two matrix
products: PyTorch's kernel wants the keys of every head, copied at each pass, and takes two to three times as
long (benchmarks/generation.py). And bf16 that is to be differentiated is computed in fp32: PyTorch's kernel
takes two to three times as long to differentiate bf16 at the lengths of reports.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from medflare.models.packed_batch import PackedRows, packed_attention

ATTENTION = "medflare"
"""Its name in transformers' registries."""
FEW = 32
"""New tokens of a pass up to which all their scores are in memory at once."""
ARCHITECTURES = ("llama", "qwen2")
"""Models whose attention goes through transformers' registry, sees all earlier tokens and drops none."""


def use_attention(model: Any) -> bool:
    """Let a decoder use this module's attention, and return whether it does; otherwise it is as it was."""
    config = model.config
    if config.model_type not in ARCHITECTURES or config._attn_implementation not in ("sdpa", ATTENTION):
        return False
    if config.to_dict().get("use_sliding_window") or config.to_dict().get("attention_dropout"):
        return False
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
    return True


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed: PackedRows | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention of a batch, (N, T, heads, D), or along the rows of a packed one, (1, M, heads, D).

    Args:
        query: (N, heads, T, D), of a packed batch (1, heads, M, D); key, value: the same of `groups` heads.
        options: what transformers gives its own functions, among them `scaling`.
    """
    if packed is not None:
        return packed_attention(query, key, value, packed, options.get("scaling")), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    learns = torch.is_grad_enabled()
    few = query.shape[2] == 1 or (attention_mask is not None and query.shape[2] <= FEW)
    if query.device.type == "cpu" and few and not learns:
        return attention_of_few(query, key, value, attention_mask, options.get("scaling")), None
    if query.device.type != "cpu" or query.dtype != torch.bfloat16 or not learns:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return plain
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):  # which would make bf16 of them again
        mixed, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **options
        )
    return mixed.to(value.dtype), None


def attention_of_few(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None = None
) -> Tensor:
    """Return attention of few queries, (N, Q, heads, D), without copying keys and values for each head.

    Args:
        query: (N, heads, Q, D); key, value: (N, groups, T, D).
        mask: (N, 1, Q, T), true where a query reads, or what is added to its scores; None: it reads all.
        scaling: of the products; None for 1/√D.
    """
    rows, heads, count, width = query.shape
    groups, length = key.shape[1], key.shape[2]
    scale = width**-0.5 if scaling is None else scaling
    grouped = (query * scale).reshape(rows, groups, -1, width)  # (N, groups, heads/groups · Q, D)
    scores = (grouped @ key.mT).view(rows, groups, -1, count, length)
    if mask is not None:
        # a row of padding reads nothing: the lowest number in place of -∞ leaves its shares finite
        seen = mask[:, :, None]  # (N, 1, 1, Q, T)
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~seen, lowest) if mask.dtype == torch.bool else scores + seen
    shares = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    mixed = shares.view(rows, groups, -1, length) @ value  # (N, groups, heads/groups · Q, D)
    return mixed.view(rows, heads, count, width).transpose(1, 2).contiguous()
