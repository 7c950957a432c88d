# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of R2GenGPT on the meta device (learners/footprint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from medflare.learners.training_step import AroundDecoder, TrainingStep, meta_decoder


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch; the language model has no adapter."""
    decoder = meta_decoder(folder, "decoder", precision)
    around = AroundDecoder(settings.model, int(decoder.config.hidden_size))
    around.head.requires_grad_(False)
    around.prompts.requires_grad_(False)
    around.encoder.requires_grad_(settings.optimiser.encoder_lr_scale > 0)

    def forward() -> Tensor:
        return around.loss(decoder, settings.optimiser.batch, 1, settings.max_report_tokens)

    return TrainingStep((decoder, around), forward, precision)
