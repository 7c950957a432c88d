# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of PromptMRG on the meta device (learners/footprint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medflare.learners.training_step import AroundDecoder, TrainingStep, meta_decoder
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import attach


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch, and of the retrieved reports of each image."""
    decoder = meta_decoder(folder, "decoder", precision)
    attach(decoder, settings.model.adapter, (GENERIC,), 0).use((GENERIC,), (GENERIC,))
    width, batch = settings.model.retrieval_width, settings.optimiser.batch
    around = AroundDecoder(settings.model, int(decoder.config.hidden_size), beside=width)
    around.encoder.requires_grad_(settings.optimiser.encoder_lr_scale > 0)
    query = nn.Linear(around.encoder.width, width)
    attention = nn.MultiheadAttention(width, settings.model.retrieval_heads, batch_first=True)

    def forward() -> Tensor:
        asked = query(torch.zeros(batch, 1, around.encoder.width))
        reports = torch.zeros(batch, settings.retrieved, width)
        read = attention(asked, reports, reports, need_weights=False)[0]
        return around.loss(decoder, batch, 1, settings.max_report_tokens) + read.sum()

    return TrainingStep((decoder, around, query, attention), forward, precision)
