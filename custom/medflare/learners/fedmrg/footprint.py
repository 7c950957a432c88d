# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of FedMRG on the meta device (learners/footprint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from medflare.learners.training_step import AroundDecoder, TrainingStep, meta_decoder
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.adapters.registry import attach


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch."""
    decoder = meta_decoder(folder, "decoder", precision)
    names = (GENERIC, ANCHOR, SPECIALISED) if settings.dual else (GENERIC,)
    adapters = attach(decoder, settings.model.adapter, names, 0)
    learning = tuple(name for name in names if name != ANCHOR)
    adapters.use(names, learning)
    around = AroundDecoder(settings.model, int(decoder.config.hidden_size))
    around.encoder.requires_grad_(settings.encoder_lr_scale > 0)

    def forward() -> Tensor:
        views = 2 if settings.contrasts else 1
        return around.loss(decoder, settings.batch, views, settings.max_report_tokens)

    return TrainingStep((decoder, around), forward, precision)
