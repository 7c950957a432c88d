# SPDX-License-Identifier: Apache-2.0
"""Attention written out gives what the fused one gives, also with grouped heads, padding and a cache."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.plain_attention import NAME, use_plain_attention, written_out


def heads(count: int, length: int, seed: int) -> Tensor:
    return torch.randn(2, count, length, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("queries", "groups"), [(7, 6), (7, 2), (1, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_it_equals_the_fused_attention(queries: int, groups: int, masked: bool) -> None:
    query, key, value = heads(6, queries, 0), heads(groups, 7, 1), heads(groups, 7, 2)
    causal = torch.ones(queries, 7, dtype=torch.bool).tril(7 - queries)
    visible = causal.expand(2, 1, queries, 7).clone()
    if masked:
        visible[0, :, :, 1] = False
    expected = F.scaled_dot_product_attention(query, key, value, visible, scale=0.3, enable_gqa=True)
    found = written_out(query, key, value, visible if masked else None, 0.3)
    torch.testing.assert_close(found, expected)


def test_a_row_that_sees_nothing_is_finite() -> None:
    query, key, value = heads(2, 3, 0), heads(2, 3, 1), heads(2, 3, 2)
    nothing = torch.zeros(2, 1, 3, 3, dtype=torch.bool)
    assert written_out(query, key, value, nothing, 0.3).isfinite().all()


def test_a_decoder_in_bf16_computes_the_same_with_it() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens, mask = torch.randint(40, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    greedy = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        fused = model(tokens, attention_mask=mask).logits
        written = model.generate(tokens, attention_mask=mask, **greedy)
        assert use_plain_attention(model)
        assert model.config._attn_implementation == NAME
        plain = model(tokens, attention_mask=mask).logits
        again = model.generate(tokens, attention_mask=mask, **greedy)
    torch.testing.assert_close(plain[0], fused[0], atol=0.02, rtol=0.02)
    torch.testing.assert_close(plain[1, 4:], fused[1, 4:], atol=0.02, rtol=0.02)
    assert torch.equal(written, again)
    assert not use_plain_attention(model)
