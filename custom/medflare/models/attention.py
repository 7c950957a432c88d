# SPDX-License-Identifier: Apache-2.0
"""Attention of frozen decoders on processors, under a name of its own in transformers' registry.

It is PyTorch's, as transformers calls it, with two differences. Rows that share their beginnings are computed
along them (`packed_batch`). And bf16 on a processor is computed in fp32: PyTorch's fused kernel takes two to
three times as long to differentiate bf16 at the lengths of reports, and no less to compute it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from medflare.models.packed_batch import PackedRows, packed_attention

ATTENTION = "medflare"
"""Its name in transformers' registries."""
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

    # a single token of generation has no backward pass, and its keys would be copied at each
    if query.device.type != "cpu" or query.dtype != torch.bfloat16 or query.shape[2] == 1:
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
