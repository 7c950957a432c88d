# SPDX-License-Identifier: Apache-2.0
"""Attention of frozen decoders: what is computed in fp32, and that the rest is PyTorch's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from medflare.models.attention import attention

CAUSAL = SimpleNamespace(num_key_value_groups=1, is_causal=True)


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.bfloat16, 7), (torch.bfloat16, 1), (torch.float32, 7)])
def test_bf16_of_several_tokens_is_computed_in_fp32_and_everything_else_as_it_is(
    dtype: torch.dtype, tokens: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, tokens, 16, generator=generator).to(dtype) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        mixed, _ = attention(CAUSAL, query, key, value, None, scaling=0.25)
    exact = dtype == torch.float32 or tokens > 1
    inputs = (query.float(), key.float(), value.float()) if exact else (query, key, value)
    expected = F.scaled_dot_product_attention(*inputs, is_causal=tokens > 1, scale=0.25)
    assert mixed.dtype == dtype
    assert torch.equal(mixed, expected.to(dtype).transpose(1, 2))
