# SPDX-License-Identifier: Apache-2.0
"""R2Gen's relational memory, and the layer norms whose scale and shift it makes.

Source: Chen, Song, Chang and Wan, Generating Radiology Reports via Memory-driven Transformer, EMNLP 2020,
equations 4 to 13.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelationalMemory(nn.Module):
    """A few rows that read each word in turn and keep what they choose to.

    Args:
        width: of a row and of a word's embedding.
        slots: rows.
    """

    def __init__(self, width: int, slots: int, heads: int) -> None:
        super().__init__()
        self.slots, self.width = slots, width
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.input_gates = nn.Linear(width, 2 * width)
        self.memory_gates = nn.Linear(width, 2 * width)

    def begin(self, batch: int, like: Tensor) -> Tensor:
        """Return the memory before the first word, (B, slots, width): rows of a unit matrix."""
        rows = torch.eye(self.slots, self.width, dtype=like.dtype, device=like.device)
        return rows.expand(batch, -1, -1)

    def read(self, memory: Tensor, word: Tensor) -> Tensor:
        """Return the memory after one more word.

        Args:
            memory: (B, slots, width). word: (B, width).
        """
        word = word[:, None]  # (B, 1, width)
        seen = torch.cat([memory, word], 1)  # (B, slots + 1, width)
        candidate = memory + self.attention(memory, seen, seen, need_weights=False)[0]
        candidate = candidate + self.mlp(candidate)
        gates = self.input_gates(word) + self.memory_gates(torch.tanh(memory))  # (B, slots, 2 width)
        taken, kept = torch.sigmoid(gates).chunk(2, -1)
        return taken * torch.tanh(candidate) + kept * memory

    def forward(self, words: Tensor) -> Tensor:
        """Return the memory after each word: (B, T, width) -> (B, T, slots * width)."""
        memory, states = self.begin(len(words), words), []
        for word in words.unbind(1):
            memory = self.read(memory, word)
            states.append(memory.flatten(1))
        return torch.stack(states, 1)


class ConditionalLayerNorm(nn.Module):
    """A layer norm whose scale and shift depend on the memory at each place.

    The last layers of its two small networks begin at zero, so that it begins as a plain norm (BL-3).
    """

    def __init__(self, width: int, condition: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.scale_change = nn.Sequential(nn.Linear(condition, width), nn.ReLU(), nn.Linear(width, width))
        self.shift_change = nn.Sequential(nn.Linear(condition, width), nn.ReLU(), nn.Linear(width, width))
        self.eps = eps

    def begin_as_plain_norm(self) -> None:
        """Set the last layers of both networks to zero."""
        for network in (self.scale_change, self.shift_change):
            for parameter in network[-1].parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Normalise x (B, T, width) under a memory (B, T, slots * width)."""
        normal = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return (self.scale + self.scale_change(memory)) * normal + self.shift + self.shift_change(memory)
