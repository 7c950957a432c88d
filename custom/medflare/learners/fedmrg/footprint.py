# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of FedMRG on the meta device (learners/footprint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from medflare.core.conditions import CONDITIONS
from medflare.learners.training_step import TEMPLATE_TOKENS, TrainingStep, decode, meta_decoder
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.adapters.registry import attach
from medflare.models.encoders import VisualEncoder


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch."""
    decoder = meta_decoder(folder, "decoder", precision)
    names = (GENERIC, ANCHOR, SPECIALISED) if settings.dual else (GENERIC,)
    adapters = attach(decoder, settings.model.adapter, names, 0)
    learning = tuple(name for name in names if name != ANCHOR)
    adapters.use(names, learning)
    encoder = VisualEncoder(settings.model.encoder.model_copy(update={"weights": "none"}))
    hidden = int(decoder.config.hidden_size)
    around = nn.ModuleList([nn.Linear(encoder.width, hidden), nn.Linear(encoder.width, 4 * len(CONDITIONS))])
    for network in (encoder, around):
        network.requires_grad_(settings.encoder_lr_scale > 0 or network is around)
    size, batch, views = settings.model.encoder.image_size, settings.batch, 2 if settings.contrasts else 1
    tokens = encoder.tokens + TEMPLATE_TOKENS + len(CONDITIONS) + settings.max_report_tokens

    def forward() -> Any:
        grid, pooled = encoder(torch.zeros(views * batch, 1, size, size))
        visual, codes = around[0](grid[:batch]), around[1](pooled)
        rest = torch.zeros(batch, tokens - visual.shape[1], hidden, requires_grad=True)
        return decode(decoder, torch.cat([visual, rest], 1), settings.max_report_tokens) + codes.sum()

    return TrainingStep((decoder, encoder, around), forward, precision)
