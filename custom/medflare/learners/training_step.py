# SPDX-License-Identifier: Apache-2.0
"""Parts of the methods' training steps on torch's meta device (footprint.py measures them)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS, Code
from medflare.models.embedded import decoder_folder
from medflare.models.encoders import VisualEncoder
from medflare.models.frozen_weights import shapes_of
from medflare.models.report_generator import ModelSettings

TEMPLATE_TOKENS = 64
"""Instruction and frame of a prompt, rounded up."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Networks on the meta device and one forward pass of a batch.

    Attributes:
        networks: every network that is in memory during the step.
        forward: runs one batch through them and returns a scalar-like tensor.
        precision: of the weights that do not learn.
    """

    networks: tuple[nn.Module, ...]
    forward: Callable[[], Any]
    precision: str


def meta_decoder(folder: Path | None, embedded: Literal["decoder", "notes_decoder"], precision: str) -> Any:
    """Return a frozen causal language model of the folder's shape, or the embedded one's, without values."""
    model = shapes_of(folder or decoder_folder(embedded), precision)
    model.requires_grad_(False)
    return model


class AroundDecoder(nn.Module):
    """Parts of a report generator around its frozen language model, on the meta device.

    Attributes:
        encoder, projection, head, prompts: as of `models.report_generator.ReportGenerator`; the head may
            read `beside` values beside the image's.
    """

    def __init__(self, shape: ModelSettings, hidden: int, beside: int = 0) -> None:
        super().__init__()
        self.shape, self.hidden, self.beside = shape, hidden, beside
        self.encoder = VisualEncoder(shape.encoder.model_copy(update={"weights": "none"}))
        self.projection = nn.Sequential(nn.Linear(self.encoder.width, hidden))
        if shape.projection_norm:
            self.projection.append(nn.LayerNorm(hidden))
        self.head = nn.Linear(self.encoder.width + beside, len(CONDITIONS) * len(Code))
        self.prompts = nn.Parameter(torch.zeros(len(Code), hidden))

    def loss(self, decoder: Any, images: int, views: int, report_tokens: int) -> Tensor:
        """Run a batch of images, each in as many views, and decode the report of one view."""
        size = self.shape.encoder.image_size
        grid, pooled = self.encoder(torch.zeros(views * images, 1, size, size))
        visual = self.projection(grid[:images])  # (B, S, hidden)
        codes = self.head(torch.cat([pooled, torch.zeros(len(pooled), self.beside)], 1))
        prompts = len(CONDITIONS) if self.shape.prompts else 0
        rest = TEMPLATE_TOKENS + prompts + report_tokens
        embedded = torch.zeros(images, rest, self.hidden, requires_grad=True)
        return decode(decoder, torch.cat([visual, embedded], 1), report_tokens) + codes.sum()


def decode(decoder: Any, inputs: Tensor, scored: int) -> Tensor:
    """Return a loss-like sum over the last `scored` of a decoder's embedded tokens (B, T, hidden)."""
    batch, tokens, _ = inputs.shape
    out = decoder(
        inputs_embeds=inputs.to(decoder.dtype),
        attention_mask=float_mask(batch, tokens, decoder.dtype),
        use_cache=False,
        logits_to_keep=scored,
    )
    return log_likelihood(out.logits)


def log_likelihood(logits: Tensor) -> Tensor:
    """Return a sum that keeps for the backward pass what a loss on these logits keeps."""
    return logits.float().log_softmax(-1).sum()


def float_mask(batch: int, tokens: int, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask (B, 1, T, T).

    transformers uses a mask of four dimensions as it is; of another one it would ask for values, which meta
    tensors do not have.
    """
    return torch.zeros(batch, 1, tokens, tokens, dtype=dtype)
