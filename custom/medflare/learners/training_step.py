# SPDX-License-Identifier: Apache-2.0
"""Parts of the methods' training steps on torch's meta device (footprint.py measures them)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from medflare.models.embedded import decoder_folder
from medflare.models.frozen_weights import shapes_of

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
