# SPDX-License-Identifier: Apache-2.0
"""Starts a small Llama with a copying circuit, so that it learns to repeat a text in minutes, not days.

Extraction writes the text again with marks in it, which a language model of this size does not learn by
itself in an hour (measured: 17 % of words copied after 400 steps; with this start 98 % after 60).
Two kinds of heads do it, an induction circuit (Olsson et al. 2022, arXiv 2209.11895): in layer 0 heads that
look one and two places back and write what stood there; in the next layers heads that look for the place
whose predecessors are the present words, and write what stands there. Everything is trained afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FAST, SLOW = 0.25, 0.02
"""Rotary frequencies (radians a place) above which a pair tells places apart, and below which it does not."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The residual stream in four parts of `part` dimensions, the last dimension a constant.

    identity: which word; previous, before: the words one and two places back; the rest is free.
    """

    part: int
    constant: int

    @property
    def identity(self) -> slice:
        return slice(0, self.part)

    def lag(self, places: int) -> slice:
        """Positions at which the word `places` back is written."""
        return slice(places * self.part, (places + 1) * self.part)


def start_copying(model: Any, seed: int = 0) -> None:
    """Sets embeddings and some heads of a `LlamaForCausalLM` with tied embeddings and at least 3 layers."""
    config = model.config
    layout = Layout((config.hidden_size - 1) // 4, config.hidden_size - 1)
    generator = torch.Generator().manual_seed(seed)
    head = config.hidden_size // config.num_attention_heads
    base = config.rope_parameters["rope_theta"]
    theta = torch.tensor([base ** (-i / (head // 2)) for i in range(head // 2)])
    with torch.no_grad():
        size = _embed(model.model.embed_tokens.weight, layout, generator)
        for index, places in enumerate((1, 2)):
            _look_back(model.model.layers[0].self_attn, index, places, theta, layout, size)
        for layer in (1, 2):
            _match_and_copy(model.model.layers[layer].self_attn, theta, layout, size, generator)


def _embed(table: Tensor, layout: Layout, generator: torch.Generator) -> float:
    """Random directions for words and one constant; returns the rows' root mean square."""
    scale = 1 / math.sqrt(layout.part)
    table.normal_(0, 0.02, generator=generator)
    table[:, layout.identity] = torch.randn(len(table), layout.part, generator=generator) * scale
    table[:, layout.constant] = 2 * scale
    return float(table.float().square().mean(1).sqrt().mean())


def _look_back(attention: Any, index: int, places: int, theta: Tensor, layout: Layout, size: float) -> None:
    """A head whose score depends on the distance alone and is highest `places` back."""
    head = 2 * len(theta)
    rows = slice(index * head, (index + 1) * head)
    weight = (theta > FAST).float()
    gain = float((weight * (1 - theta.cos())).sum())
    constant = 2 / math.sqrt(layout.part) / size
    strength = math.sqrt(12 * math.sqrt(head) / gain) / constant
    zero = torch.zeros_like(theta)
    query = torch.cat([weight, zero])
    key = torch.cat([weight * (places * theta).cos(), weight * (places * theta).sin()])
    for projection, vector in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[rows] *= 0.1
        projection.weight[rows, layout.constant] = vector * strength
    _carry(attention, rows, layout, layout.lag(places), size)


def _match_and_copy(
    attention: Any, theta: Tensor, layout: Layout, size: float, generator: torch.Generator
) -> None:
    """A head that finds the place whose two predecessors are the last two words, and writes its word."""
    head = 2 * len(theta)
    rows, width = slice(0, head), 2 * layout.part
    slow = [i for i, value in enumerate(theta) if value < SLOW]
    places = slow + [len(theta) + i for i in slow]
    mixing = torch.linalg.qr(torch.randn(width, len(places), generator=generator))[0]
    strength = math.sqrt(16 * math.sqrt(head) * width / len(places)) / (0.55 / size)
    for projection, offset in ((attention.q_proj, 0), (attention.k_proj, layout.part)):
        block = torch.zeros(head, projection.weight.shape[1])
        block[places, offset : offset + width] = mixing.T * strength
        projection.weight[rows] = 0.1 * projection.weight[rows] + block
    _carry(attention, rows, layout, layout.identity, 2 * size)


def _carry(attention: Any, rows: slice, layout: Layout, target: slice, scale: float) -> None:
    """Value and output of a head: the identity of the place looked at, into `target`."""
    head = rows.stop - rows.start
    kept = min(head, layout.part)
    copy = torch.zeros(head, layout.part)
    copy[:kept, :kept] = torch.eye(kept)
    attention.v_proj.weight[rows] = 0
    attention.v_proj.weight[rows, layout.identity] = copy
    attention.o_proj.weight[:, rows] *= 0.1
    attention.o_proj.weight[target, rows] = copy.T * scale
