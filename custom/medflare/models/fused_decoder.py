# SPDX-License-Identifier: Apache-2.0
"""A frozen decoder of the Llama family with LoRA, computed without padding and in few large steps.

Projections of one input are one matrix product: their frozen weights lie side by side, of which the decoder's
layers hold views, so that nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.adapters.base import AdaptedLayer, AdapterSet
from medflare.models.attention import ARCHITECTURES
from medflare.models.fused_operations import (
    AnswerLoss,
    GatedUnit,
    LowRankLinear,
    PackedAttention,
    PackedLayout,
    RMSNorm,
)
from medflare.models.packed_batch import PackedBatch, PackedRows, rows_alone
from medflare.models.recomputation import recomputes_activations

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
GATED_PROJECTIONS = ("gate_proj", "up_proj")
SHAPES = 64
"""Tokens of reports are computed in multiples of it: oneDNN keeps a compiled product for each number of rows,
and a worker grew with every batch."""


MOST_ON_A_GPU = 1024
"""Hidden size up to which this is for GPUs too: there a small model's step is as long as starting its many
operations takes (docs/results/gpu.md). Larger models were not measured."""


def can_fuse(model: Any, gpu: bool = False) -> bool:
    """Return whether a causal language model is what this module computes: Llama's form on a processor.

    Args:
        gpu: whether a small model on one GPU will do as well.
    """
    config = model.config
    one_gpu = model.device.type == "cuda" and not getattr(model, "hf_device_map", None)
    small = gpu and one_gpu and config.hidden_size <= MOST_ON_A_GPU
    return (
        config.model_type in ARCHITECTURES
        and config.hidden_act == "silu"
        and (model.device.type == "cpu" or small)
        and model.get_output_embeddings().bias is None
        and not getattr(model, "is_quantized", False)
    )


Adapted = Mapping[Any, AdaptedLayer]
"""The layers with adapters, as `AdapterSet.adapted_layers` returns them."""
Attention = Callable[[Any, Tensor], Tensor]
"""(a layer's attention module, what its three projections yield) -> what the output projection takes."""


@dataclass(slots=True)
class Projections:
    """Linear layers of one input as one product.

    Attributes:
        layers: as they stand in the decoder, with or without adapters; bases: their frozen matrices.
        weight: (Σ out, in) and bias: (Σ out,), of which the layers' own are views.
    """

    layers: Sequence[Any]
    bases: Sequence[Any]
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, block: Any, names: Sequence[str], adapted: Adapted) -> Projections:
        layers = [getattr(block, name) for name in names]
        bases = [adapted[layer].base if layer in adapted else layer for layer in layers]
        if len(bases) == 1:
            return cls(layers, bases, bases[0].weight.data, bases[0].bias)
        weight = torch.cat([base.weight.data for base in bases])
        for base, part in zip(bases, weight.split([len(base.weight) for base in bases]), strict=True):
            base.weight.data = part
        biases = [base.bias for base in bases]
        return cls(layers, bases, weight, None if biases[0] is None else torch.cat(biases))

    def current(self) -> bool:
        """Return whether the layers' weights are still the views; who merges adapters may replace them."""
        places = [base.weight.data_ptr() for base in self.bases]
        sizes = [base.weight.nbytes for base in self.bases]
        return all(place == self.weight.data_ptr() + sum(sizes[:i]) for i, place in enumerate(places))

    def __call__(self, x: Tensor, adapted: Adapted) -> Tensor:
        """(M, in) -> (M, Σ out)."""
        pairs = [adapted[layer].pairs if layer in adapted else () for layer in self.layers]
        factors: list[Tensor] = [pair.a for layer in pairs for pair in layer]
        if not factors:
            return F.linear(x, self.weight, self.bias)
        a = torch.cat(factors).to(x.dtype)  # (Σ ρ, in)
        blocks = [
            torch.cat([pair.b * pair.scale for pair in layer], 1)
            if layer
            else base.weight.new_zeros(len(base.weight), 0)
            for base, layer in zip(self.bases, pairs, strict=True)
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
    def of(cls, layer: Any, adapted: Adapted) -> Block:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer,
            Projections.of(attention, ATTENTION_PROJECTIONS, adapted),
            Projections.of(attention, ("o_proj",), adapted),
            Projections.of(mlp, GATED_PROJECTIONS, adapted),
            Projections.of(mlp, ("down_proj",), adapted),
        )

    def __call__(
        self, x: Tensor, adapted: Adapted, attention: Attention, wanted: Tensor | None = None
    ) -> Tensor:
        """Return the layer's states of all nodes, (M, H) -> (M, H), or of those `wanted`, (W,) -> (W, H)."""
        qkv = self.qkv(normed(x, self.layer.input_layernorm), adapted)  # (M, (heads + 2 · groups) · D)
        mixed = attention(self.layer.self_attn, qkv)  # (M, heads · D)
        if wanted is not None:
            x, mixed = x.index_select(0, wanted), mixed.index_select(0, wanted)
        x = x + self.out(mixed, adapted)
        gate_up = self.gate_up(normed(x, self.layer.post_attention_layernorm), adapted)
        return x + self.down(GatedUnit.apply(gate_up), adapted)


def decoder_blocks(decoder: Any, adapted: Adapted) -> list[Block]:
    """Return a decoder's layers, whose frozen weights become views of those here."""
    return [Block.of(layer, adapted) for layer in decoder.layers]


class FusedDecoder:
    """A causal language model with LoRA on packed batches, and on rows of embedded tokens."""

    def __init__(self, model: Any, adapters: AdapterSet) -> None:
        self.model, self.adapters = model, adapters
        self._blocks: list[Block] = []

    def available(self) -> bool:
        """Return whether the adapters in use are pairs of low rank and nothing is to be computed twice."""
        adapted = self.adapters.adapted_layers()
        return adapted is not None and self._holds(adapted) and not recomputes_activations(self.model)

    def _holds(self, layers: Iterable[Any]) -> bool:
        """Return whether all of these are projections of the decoder's blocks, where pairs are computed."""
        blocks = [part for layer in self.model.get_decoder().layers for part in (layer.self_attn, layer.mlp)]
        held = {id(part) for block in blocks for part in block.children()}
        return all(id(layer) in held for layer in layers)

    def loss(self, packed: PackedBatch) -> Tensor:
        """Return the summed negative log-likelihood of a batch's answer tokens."""
        x = self.model.get_decoder().embed_tokens(packed.ids)[0]  # (M, H)
        states = self._states(x, packed.positions, packed.rows, packed.sources)  # (K, H)
        out: Tensor = AnswerLoss.apply(states, self.model.get_output_embeddings().weight, packed.targets)
        return out

    def states(self, embedded: Tensor, present: Tensor, wanted: Tensor) -> Tensor:
        """Return the last hidden states of some tokens, (K, H), row by row.

        Args:
            embedded: (N, L, H); of each row only what is `present`, (N, L) bool, is computed.
            wanted: (N, L) bool, among what is present.
        """
        present = filled_up(present)
        x = embedded[present].to(self.model.get_input_embeddings().weight.dtype)  # (M, H)
        positions = (present.cumsum(1) - 1)[present][None]  # (1, M)
        sources = wanted[present].nonzero().squeeze(1)  # (K,)
        return self._states(x, positions, rows_alone(present.sum(1)), sources)

    def _states(self, x: Tensor, positions: Tensor, rows: PackedRows, sources: Tensor) -> Tensor:
        """Return the last hidden states of the nodes `sources`, (K, H).

        Args:
            x: (M, H) embedded nodes; positions: (1, M).
        """
        decoder, config = self.model.get_decoder(), self.model.config
        adapted = self.adapters.adapted_layers() or {}
        cos, sin = decoder.rotary_emb(x[None], position_ids=positions)  # (1, M, D)
        layout = PackedLayout.of(rows, config.num_attention_heads, config.num_key_value_heads, x.dtype)

        def along_rows(module: Any, qkv: Tensor) -> Tensor:
            mixed: Tensor = PackedAttention.apply(qkv, cos[0], sin[0], layout, module.scaling)
            return mixed

        *blocks, last = self._current_blocks(decoder, adapted)
        for block in blocks:
            x = block(x, adapted, along_rows)
        # Nothing reads the last layer's states of other nodes, which are most of a prompt.
        read, places = sources.unique(return_inverse=True)  # (W,), (K,)
        read = F.pad(read, (0, -len(read) % SHAPES))
        if len(read) < len(x):
            x = last(x, adapted, along_rows, read)
        else:
            x, places = last(x, adapted, along_rows), sources
        return normed(x.index_select(0, places), decoder.norm)

    def _current_blocks(self, decoder: Any, adapted: Adapted) -> list[Block]:
        parts = [p for b in self._blocks for p in (b.qkv, b.out, b.gate_up, b.down)]
        if not parts or not all(part.current() for part in parts):
            self._blocks = decoder_blocks(decoder, adapted)
        return self._blocks


def filled_up(present: Tensor) -> Tensor:
    """Return present places (N, L) and some of the padding behind them: a multiple of SHAPES.

    Nothing reads a place behind it, so results do not change. All padding where there is too little.
    """
    missing = -int(present.sum()) % SHAPES
    behind = ~present & (present.cumsum(1) == present.sum(1, keepdim=True))  # (N, L)
    return present | (behind & (behind.flatten().cumsum(0).view_as(behind) <= missing))


def normed(x: Tensor, norm: Any) -> Tensor:
    out: Tensor = RMSNorm.apply(x, norm.weight, norm.variance_epsilon)
    return out
