# SPDX-License-Identifier: Apache-2.0
"""A batch of token rows as one sequence, in which rows share their common beginnings and nothing is padding.

What a causal model computes at a token depends on that token and those before it. Rows that begin alike, with
the same instruction or about the same window of a note, are therefore computed once as far as they do: the
rows become a trie, its nodes one sequence, and attention reads along the path of each row. Loss and gradients
are those of padded rows; tests/unit/models/test_packed_batch.py compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.padding import pad_rows


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The way of each row through M nodes, which attention reads along.

    Attributes:
        paths: the nodes of each row, (N, T); shorter rows repeat node 0.
        queries: each row's nodes that no row before it has, (N, Q); rows with fewer repeat node 0.
        visible: which tokens of its row a query reads, (N, Q, T).
        kept: places among the N·Q queries of the M nodes, in their order, (M,).
    """

    paths: Tensor
    queries: Tensor
    visible: Tensor
    kept: Tensor

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> PackedRows:
        """Return the same on a device; accelerate calls it where a model's layers lie on several."""
        parts = (self.paths, self.queries, self.visible, self.kept)
        return PackedRows(*(part.to(device, non_blocking=non_blocking) for part in parts))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows of tokens as the nodes of a trie, M in all, numbered row by row.

    Attributes:
        ids, positions: token and place in its rows of each node, both (1, M).
        sources, targets: the node before each answer token, and that token, (K,).
    """

    ids: Tensor
    positions: Tensor
    rows: PackedRows
    sources: Tensor
    targets: Tensor


def pack(rows: Sequence[Sequence[int]], starts: Sequence[int], device: torch.device | str) -> PackedBatch:
    """Return rows as a trie.

    Args:
        rows: token ids; starts: where each row's answer begins.
    """
    children: dict[tuple[int, int], int] = {}
    ids: list[int] = []
    positions: list[int] = []
    paths: list[list[int]] = []
    first: list[int] = []
    for row in rows:
        node, path, known = -1, list[int](), len(ids)
        for place, token in enumerate(row[:-1]):  # nothing is predicted after a row's last token
            node = children.setdefault((node, token), len(ids))
            if node == len(ids):
                ids.append(token)
                positions.append(place)
            path.append(node)
        paths.append(path)
        first.append(sum(node < known for node in path))
    rests = [path[begin:] for path, begin in zip(paths, first, strict=True)]
    path_ids, _ = pad_rows(paths, 0)  # (N, T)
    queries, real = pad_rows(rests, 0)  # (N, Q)
    places = torch.tensor(first)[:, None] + torch.arange(queries.shape[1])  # (N, Q)
    visible = torch.arange(path_ids.shape[1]) <= places[:, :, None]  # (N, Q, T)
    sources = [node for path, start in zip(paths, starts, strict=True) for node in path[start - 1 :]]
    targets = [token for row, start in zip(rows, starts, strict=True) for token in row[start:]]
    return PackedBatch(
        ids=torch.tensor([ids], device=device),
        positions=torch.tensor([positions], device=device),
        rows=PackedRows(
            paths=path_ids.to(device),
            queries=queries.to(device),
            visible=visible.to(device),
            kept=real.flatten().nonzero().squeeze(1).to(device),
        ),
        sources=torch.tensor(sources, dtype=torch.long, device=device),
        targets=torch.tensor(targets, dtype=torch.long, device=device),
    )


def rows_alone(lengths: Tensor) -> PackedRows:
    """Return rows that share no node: their tokens one after another, row by row.

    Args:
        lengths: (N,) tokens of each row.
    """
    places = torch.arange(int(lengths.max()), device=lengths.device)  # (T,)
    real = places < lengths[:, None]  # (N, T)
    first = lengths.cumsum(0) - lengths  # (N,)
    paths = (first[:, None] + places).masked_fill(~real, 0)  # (N, T)
    visible = (places[:, None] >= places).expand(len(lengths), -1, -1)  # (N, T, T)
    return PackedRows(paths, paths, visible, real.flatten().nonzero().squeeze(1))


def hidden_states(decoder: Any, packed: PackedBatch) -> Tensor:
    """Return a decoder's last hidden states of all nodes, (M, H)."""
    # A mask of four dimensions is taken as it is, so that none of (M, M) is made.
    unused = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=packed.ids.device)
    out = decoder(
        input_ids=packed.ids,
        position_ids=packed.positions,
        attention_mask=unused,
        use_cache=False,
        packed=packed.rows,
    )
    states: Tensor = out.last_hidden_state[0]
    return states


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scaling: float | None = None
) -> Tensor:
    """Return attention along the rows of a packed batch, (1, M, heads, D).

    Args:
        query: (1, heads, M, D); key, value: (1, groups, M, D).
        scaling: of the products; None for 1/√D.
    """
    queries = query[0].transpose(0, 1)[packed.queries].transpose(1, 2)  # (N, heads, Q, D)
    keys = key[0].transpose(0, 1)[packed.paths].transpose(1, 2)  # (N, groups, T, D)
    values = value[0].transpose(0, 1)[packed.paths].transpose(1, 2)  # (N, groups, T, D)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.device.type == "cpu":
        mixed = _plain_attention(queries, keys, values, packed.visible, scale)
    else:
        mask = packed.visible[:, None]
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
    rows = mixed.transpose(1, 2).flatten(0, 1)  # (N·Q, heads, D)
    return rows[packed.kept][None]


def _plain_attention(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Return softmax(Q Kᵀ · scale) V, written out.

    On processors the backward pass of PyTorch's fused attention takes eight times as long in bf16
    (benchmarks/text_training.py).

    Args:
        queries: (N, heads, Q, D); keys, values: (N, groups, T, D); visible: (N, Q, T).
    """
    rows, heads, count, width = queries.shape
    groups, length = keys.shape[1], keys.shape[2]
    grouped = (queries * scale).reshape(rows, groups, -1, width)  # (N, groups, heads/groups·Q, D)
    scores = (grouped @ keys.transpose(-1, -2)).view(rows, groups, -1, count, length)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    mixed = shares.view(rows, groups, -1, length) @ values
    return mixed.view(rows, heads, count, width)
