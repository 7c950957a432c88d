# SPDX-License-Identifier: Apache-2.0
"""The Transformer of the classical report generators, plain or with R2Gen's memory, as tensors in and out.

Image features of width C become S tokens, an encoder relates them, a decoder writes words. Normalisation
stands before each part, as in R2Gen's code. `writing.ReportWriter` adds images, words and beam search.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from medflare.models.generators.relational_memory import ConditionalLayerNorm, RelationalMemory
from medflare.models.generators.settings import TransformerShape


class WordEmbedding(nn.Module):
    """Embeddings of tokens times sqrt(width), plus sines of their places."""

    places: Tensor

    def __init__(self, vocabulary: int, settings: TransformerShape) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.register_buffer("places", sines(settings.positions, settings.width), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed tokens: (B, T) -> (B, T, width)."""
        embedded: Tensor = self.table(ids) * math.sqrt(self.table.embedding_dim)
        return self.dropout(embedded + self.places[: ids.shape[1]])


class DecoderLayer(nn.Module):
    """Self-attention, attention to the image and a feed-forward part, each after its norm."""

    def __init__(self, settings: TransformerShape) -> None:
        super().__init__()
        width, heads = settings.width, settings.attention_heads
        self.self_attention = nn.MultiheadAttention(width, heads, settings.dropout, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(width, heads, settings.dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, settings.feed_forward),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.feed_forward, width),
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.norms: Any = nn.ModuleList()
        self.conditioned = settings.memory == "relational"
        for _ in range(3):
            condition = settings.slots * width
            plain = nn.LayerNorm(width)
            self.norms.append(ConditionalLayerNorm(width, condition) if self.conditioned else plain)

    def begin_as_plain_norms(self) -> None:
        """Let norms that the memory conditions begin without its effect (BL-3)."""
        for norm in self.norms if self.conditioned else ():
            norm.begin_as_plain_norm()

    def forward(
        self, x: Tensor, image: Tensor, mask: Tensor, memory: Tensor | None, absent: Tensor | None = None
    ) -> Tensor:
        """Return the words after this layer, (B, T, width).

        Args:
            x: words (B, T, width). image: (B, S, width).
            mask: (T, T) bool, true where a word may not look.
            memory: (B, T, slots * width) of R2Gen, else None.
            absent: (B, S) bool, true where the image has no token.
        """
        y = self._norm(0, x, memory)
        attended = self.self_attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        x = x + self.dropout(attended)
        y = self._norm(1, x, memory)
        seen = self.cross_attention(y, image, image, key_padding_mask=absent, need_weights=False)[0]
        x = x + self.dropout(seen)
        return x + self.dropout(self.feed_forward(self._norm(2, x, memory)))

    def _norm(self, place: int, x: Tensor, memory: Tensor | None) -> Tensor:
        norm = self.norms[place]
        normal: Tensor = norm(x) if memory is None else norm(x, memory)
        return normal


class ReportTransformer(nn.Module):
    """Transformer from image features to words.

    Args:
        features: width C of the image encoder's features.
        vocabulary: tokens.
    """

    def __init__(self, settings: TransformerShape, features: int, vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        self.visual = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Dropout(settings.dropout))
        layer = nn.TransformerEncoderLayer(
            width,
            settings.attention_heads,
            settings.feed_forward,
            settings.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.relate = nn.TransformerEncoder(
            layer, settings.layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.words = WordEmbedding(vocabulary, settings)
        layers = [DecoderLayer(settings) for _ in range(settings.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary)
        self.memory = (
            None
            if settings.memory == "none"
            else RelationalMemory(width, settings.slots, settings.attention_heads)
        )
        self._initialise(layers)

    def encode(self, features: Tensor) -> Tensor:
        """Relate an image's features to each other: (B, S, C) -> (B, S, width)."""
        related: Tensor = self.relate(self.visual(features))
        return related

    def hidden(self, image: Tensor, ids: Tensor) -> Tensor:
        """Return the decoder's states, (B, T, width), of words (B, T) given the image (B, S, width)."""
        x = self.words(ids)  # (B, T, width)
        memory = None
        if self.memory is not None and self.settings.memory == "relational":
            memory = self.memory(x)  # (B, T, slots * width)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.layers:
            x = layer(x, image, mask, memory)
        normal: Tensor = self.norm(x)
        return normal

    def forward(self, image: Tensor, ids: Tensor) -> Tensor:
        """Return the logits of the word after each word, (B, T, vocabulary)."""
        logits: Tensor = self.out(self.hidden(image, ids))
        return logits

    def _initialise(self, layers: list[DecoderLayer]) -> None:
        """Xavier's uniform values for every matrix, as R2Gen's code."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for layer in layers:
            layer.begin_as_plain_norms()


def sines(positions: int, width: int) -> Tensor:
    """Return sines and cosines of places, (positions, width), of Vaswani et al., section 3.5."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))  # (width / 2,)
    angles = torch.arange(positions)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
