# SPDX-License-Identifier: Apache-2.0
"""A frozen decoder of the Llama family with LoRA, computed for packed batches in few large steps.

Projections of one input are one matrix product: their frozen weights lie side by side, of which the decoder's
layers hold views, so that nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.adapters.base import AdapterSet, LowRankPair
from medflare.models.attention import ARCHITECTURES
from medflare.models.fused_operations import (
    AnswerLoss,
    GatedUnit,
    LowRankLinear,
    PackedAttention,
    PackedLayout,
    RMSNorm,
)
from medflare.models.packed_batch import PackedBatch

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
GATED_PROJECTIONS = ("gate_proj", "up_proj")


def can_fuse(model: Any) -> bool:
    """Return whether a causal language model is what this module computes: Llama's form on a processor."""
    config = model.config
    return (
        config.model_type in ARCHITECTURES
        and config.hidden_act == "silu"
        and model.device.type == "cpu"
        and model.get_output_embeddings().bias is None
    )


@dataclass(slots=True)
class Projections:
    """Linear layers of one input as one product.

    Attributes:
        bases: the frozen layers; pairs: LoRA's of each, None for a layer without.
        weight: (Σ out, in) and bias: (Σ out,), of which the layers' own are views.
    """

    bases: Sequence[Any]
    pairs: Sequence[LowRankPair | None]
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, block: Any, names: Sequence[str], pairs: Mapping[Any, LowRankPair]) -> Projections:
        layers = [getattr(block, name) for name in names]
        found = [pairs.get(layer) for layer in layers]
        bases = [layer if pair is None else pair.base for layer, pair in zip(layers, found, strict=True)]
        if len(bases) == 1:
            return cls(bases, found, bases[0].weight.data, bases[0].bias)
        weight = torch.cat([base.weight.data for base in bases])
        for base, part in zip(bases, weight.split([len(base.weight) for base in bases]), strict=True):
            base.weight.data = part
        biases = [base.bias for base in bases]
        return cls(bases, found, weight, None if biases[0] is None else torch.cat(biases))

    def current(self) -> bool:
        """Return whether the layers' weights are still the views; who merges adapters may replace them."""
        places = [base.weight.data_ptr() for base in self.bases]
        sizes = [base.weight.nbytes for base in self.bases]
        return all(place == self.weight.data_ptr() + sum(sizes[:i]) for i, place in enumerate(places))

    def __call__(self, x: Tensor) -> Tensor:
        """(M, in) -> (M, Σ out)."""
        factors = [pair for pair in self.pairs if pair is not None]
        if not factors:
            return F.linear(x, self.weight, self.bias)
        a = torch.cat([pair.a for pair in factors]).to(x.dtype)  # (Σ ρ, in)
        blocks = [
            base.weight.new_zeros(len(base.weight), 0) if pair is None else pair.b * pair.scale
            for base, pair in zip(self.bases, self.pairs, strict=True)
        ]
        b = torch.block_diag(*blocks).to(x.dtype)  # (Σ out, Σ ρ)
        out: Tensor = LowRankLinear.apply(x, self.weight, self.bias, a, b)
        return out


@dataclass(slots=True)
class Block:
    """One layer of the decoder."""

    layer: Any
    qkv: Projections
    out: Projections
    gate_up: Projections
    down: Projections

    @classmethod
    def of(cls, layer: Any, pairs: Mapping[Any, LowRankPair]) -> Block:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer,
            Projections.of(attention, ATTENTION_PROJECTIONS, pairs),
            Projections.of(attention, ("o_proj",), pairs),
            Projections.of(mlp, GATED_PROJECTIONS, pairs),
            Projections.of(mlp, ("down_proj",), pairs),
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, layout: PackedLayout) -> Tensor:
        scale = self.layer.self_attn.scaling
        qkv = self.qkv(_normed(x, self.layer.input_layernorm))  # (M, (heads + 2 · groups) · D)
        x = x + self.out(PackedAttention.apply(qkv, cos, sin, layout, scale))  # (M, H)
        gate_up = self.gate_up(_normed(x, self.layer.post_attention_layernorm))  # (M, 2 · F)
        return x + self.down(GatedUnit.apply(gate_up))  # (M, H)


class FusedDecoder:
    """The loss of a causal language model with LoRA on packed batches."""

    def __init__(self, model: Any, adapters: AdapterSet) -> None:
        self.model, self.adapters = model, adapters
        self._blocks: list[Block] = []
        self._factors: list[int] = []

    def available(self) -> bool:
        """Return whether the adapters in use are pairs of low rank and nothing is to be computed twice."""
        return self.adapters.low_rank_pairs() is not None and not self.model.is_gradient_checkpointing

    def loss(self, packed: PackedBatch) -> Tensor:
        """Return the summed negative log-likelihood of a batch's answer tokens."""
        decoder = self.model.get_decoder()
        x = decoder.embed_tokens(packed.ids)  # (1, M, H)
        cos, sin = decoder.rotary_emb(x, position_ids=packed.positions)  # (1, M, D)
        config = self.model.config
        layout = PackedLayout.of(packed, config.num_attention_heads, config.num_key_value_heads, x.dtype)
        x = x[0]
        for block in self._current_blocks(decoder):
            x = block(x, cos[0], sin[0], layout)
        states = _normed(x[packed.sources], decoder.norm)  # (K, H)
        out: Tensor = AnswerLoss.apply(states, self.model.get_output_embeddings().weight, packed.targets)
        return out

    def _current_blocks(self, decoder: Any) -> list[Block]:
        pairs = self.adapters.low_rank_pairs() or {}
        factors = [id(factor) for pair in pairs.values() for factor in (pair.a, pair.b)]
        parts = [p for b in self._blocks for p in (b.qkv, b.out, b.gate_up, b.down)]
        if not parts or factors != self._factors or not all(part.current() for part in parts):
            self._blocks = [Block.of(layer, pairs) for layer in decoder.layers]
            self._factors = factors
        return self._blocks


def _normed(x: Tensor, norm: Any) -> Tensor:
    out: Tensor = RMSNorm.apply(x, norm.weight, norm.variance_epsilon)
    return out
