# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of a text task on the meta device (learners/footprint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from medflare.learners.training_step import TrainingStep, float_mask, log_likelihood, meta_decoder
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import attach
from medflare.models.recomputation import recompute_activations


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch."""
    decoder = meta_decoder(folder, "notes_decoder", precision)
    attach(decoder, settings.adapter, (GENERIC,), 0).use((GENERIC,), (GENERIC,))
    if settings.optimiser.gradient_checkpointing:
        recompute_activations(decoder)
        decoder.enable_input_require_grads()
        decoder.train()
    positions = int(getattr(decoder.config, "max_position_embeddings", None) or settings.max_tokens)
    batch, tokens = settings.optimiser.batch, min(settings.max_tokens, positions)
    scored = settings.most_answer_tokens(tokens)

    def forward() -> Any:
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        mask = float_mask(batch, tokens, decoder.dtype)
        out = decoder(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=scored)
        return log_likelihood(out.logits)

    return TrainingStep((decoder,), forward, precision)
