# SPDX-License-Identifier: Apache-2.0
"""Attention of frozen decoders: what is computed in fp32, and that the rest is PyTorch's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from medflare.models.attention import ATTENTION, attention, use_attention

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "masked"), [(1, "no"), (1, "bool"), (5, "bool"), (5, "added")])
def test_few_tokens_of_generation_read_what_pytorch_reads(
    dtype: torch.dtype, tokens: int, masked: str
) -> None:
    """Two groups of keys serve six heads; a row of padding stays finite."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(3, 6, tokens, 16, generator=generator).to(dtype)
    key, value = (torch.randn(3, 2, 9, 16, generator=generator).to(dtype) for _ in range(2))
    seen = torch.rand(3, 1, tokens, 9, generator=generator) < 0.6
    seen[..., 0], seen[2, :, 0] = True, masked == "no"
    mask = {"no": None, "bool": seen, "added": torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -1e30)}
    with torch.no_grad():
        mixed, _ = attention(CAUSAL, query, key, value, mask[masked], scaling=0.25)
    every = [x.float().repeat_interleave(3, 1) for x in (key, value)]
    visible = torch.ones_like(seen) if masked == "no" else seen
    expected = F.scaled_dot_product_attention(query.float(), *every, attn_mask=visible, scale=0.25)
    assert (mixed.dtype, mixed.shape) == (dtype, (3, tokens, 6, 16))
    near = 1e-6 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(mixed[:2].float(), expected[:2].transpose(1, 2), atol=near, rtol=near)
    assert mixed.isfinite().all()


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
        assert use_attention(model)
        assert model.config._attn_implementation == ATTENTION
        ours = model(tokens, attention_mask=mask).logits
        again = model.generate(tokens, attention_mask=mask, **greedy)
    torch.testing.assert_close(ours[0], fused[0], atol=0.02, rtol=0.02)
    torch.testing.assert_close(ours[1, 4:], fused[1, 4:], atol=0.02, rtol=0.02)
    assert torch.equal(written, again)
