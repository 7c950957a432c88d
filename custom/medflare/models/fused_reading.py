# SPDX-License-Identifier: Apache-2.0
"""Forward passes of a decoder of the Llama family over new tokens of many rows, none of them padding.

Rows of a pass differ in length: the prompts, and what is drafted of each answer. Norms, projections and the
feed-forward part take the tokens alone; only attention, where rows have keys of their own, is laid out in
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from medflare.models.adapters.base import AdapterSet
from medflare.models.attention import attention
from medflare.models.fused_decoder import Block, decoder_blocks, normed
from medflare.models.fused_operations import PackedAttention, PackedLayout, rotated
from medflare.models.packed_batch import pack

MOST_SCORES = 2**25
"""Attention scores of one layer that are in memory together: 64 MB in bf16."""


class FusedReader:
    """Reads with the weights and adapters that a decoder has when this is made."""

    def __init__(self, model: Any, adapters: AdapterSet) -> None:
        self.model = model
        self.adapted = adapters.adapted_layers() or {}
        self.blocks: list[Block] = decoder_blocks(model.get_decoder(), self.adapted)

    def read(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Return the last layer's states, 0 at padding, and the cache, as `TextBackbone.read`."""
        return self.read_embedded(self.model.get_decoder().embed_tokens(ids), mask, positions, cache)

    def read_embedded(
        self, embedded: Tensor, mask: Tensor, positions: Tensor, cache: Any
    ) -> tuple[Tensor, Any]:
        """Read embedded tokens, (N, L, H), as `read`."""
        from transformers import DynamicCache

        cache = DynamicCache() if cache is None else cache
        config, decoder = self.model.config, self.model.get_decoder()
        new = mask[:, -embedded.shape[1] :].bool()  # (N, L)
        x = embedded[new]  # (M, H)
        cos, sin = decoder.rotary_emb(x[None], position_ids=positions[new][None])  # (1, M, D)
        rows = Rows.of(mask, new, cos[0], sin[0], config.num_attention_heads, config.num_key_value_heads)
        for block in self.blocks:
            x = block(x, self.adapted, lambda module, qkv: rows.mix(module, qkv, cache))
        out = x.new_zeros(new.numel(), x.shape[1]).index_copy_(0, rows.places, normed(x, decoder.norm))
        return out.view(*new.shape, -1), cache

    def holds(self, rows: Sequence[Sequence[int]]) -> bool:
        """Return whether all scores of these rows may be in memory together, as `read_rows` has them."""
        heads = int(self.model.config.num_attention_heads)
        return len(rows) * heads * max(map(len, rows)) ** 2 <= MOST_SCORES

    def read_rows(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Any]:
        """Read rows as `TextBackbone.read_rows`; what some begin with alike is computed once."""
        from transformers import DynamicCache

        cache, config, decoder = DynamicCache(), self.model.config, self.model.get_decoder()
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        # `pack` leaves out a row's last token, after which nothing is predicted
        packed = pack([[*row, 0] for row in rows], [len(row) for row in rows], self.model.device)
        x = decoder.embed_tokens(packed.ids)[0]  # (M, H)
        cos, sin = (part[0] for part in decoder.rotary_emb(x[None], position_ids=packed.positions))  # (M, D)
        layout = PackedLayout.of(packed.rows, heads, groups, x.dtype)

        def along_rows(module: Any, qkv: Tensor) -> Tensor:
            parts = qkv.view(len(qkv), heads + 2 * groups, -1)
            keys, values = rotated(parts[:, heads : heads + groups], cos, sin), parts[:, heads + groups :]
            by_row = (part[layout.paths].transpose(1, 2) for part in (keys, values))  # (N, groups, T, D)
            cache.update(next(by_row), next(by_row), module.layer_idx)
            mixed: Tensor = PackedAttention.apply(qkv, cos, sin, layout, module.scaling)
            return mixed

        for block in self.blocks:
            x = block(x, self.adapted, along_rows)
        lengths = torch.tensor([len(row) for row in rows], device=x.device)
        mask = torch.arange(layout.paths.shape[1], device=x.device) < lengths[:, None]  # (N, T)
        return normed(x, decoder.norm)[layout.paths], mask.long(), cache


@dataclass(slots=True)
class Rows:
    """Rows of one pass: N of them with L places for new tokens, of which M are filled, after T earlier ones.

    Attributes:
        shape: (N, L); places: (M,) of the tokens among the N·L; cos, sin: (M, D) of their positions.
        visible: (N, 1, L, T + L), true where a token reads.
    """

    shape: tuple[int, int]
    places: Tensor
    visible: Tensor
    cos: Tensor
    sin: Tensor
    heads: int
    groups: int

    @classmethod
    def of(cls, mask: Tensor, new: Tensor, cos: Tensor, sin: Tensor, heads: int, groups: int) -> Rows:
        rows, length = new.shape
        earlier = mask.shape[1] - length
        order = torch.ones(length, mask.shape[1], dtype=torch.bool, device=mask.device).tril(earlier)
        visible = mask[:, None, None].bool() & order
        return cls((rows, length), new.flatten().nonzero().squeeze(1), visible, cos, sin, heads, groups)

    def mix(self, module: Any, qkv: Tensor, cache: Any) -> Tensor:
        """Return what attention of one layer makes of its projections, (M, heads · D); keys enter the cache.

        Args:
            module: the layer's attention; qkv: (M, (heads + 2 · groups) · D).
        """
        heads, groups = self.heads, self.groups
        parts = qkv.view(len(qkv), heads + 2 * groups, -1)
        turned = rotated(parts[:, : heads + groups], self.cos, self.sin)
        laid_out = qkv.new_zeros(self.shape[0] * self.shape[1], *parts.shape[1:])
        laid_out.index_copy_(0, self.places, torch.cat([turned, parts[:, heads + groups :]], 1))
        by_head = laid_out.view(*self.shape, *parts.shape[1:]).transpose(1, 2)  # (N, heads + …, L, D)
        query, key, value = by_head.split([heads, groups, groups], 1)
        keys, values = cache.update(key, value, module.layer_idx)  # (N, groups, T + L, D)
        mixed, _ = attention(module, query, keys, values, self.visible, scaling=module.scaling)
        return mixed.reshape(len(laid_out), -1).index_select(0, self.places)
