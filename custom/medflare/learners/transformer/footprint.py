# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of the Transformer's family on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from medflare.learners.training_step import TrainingStep, log_likelihood
from medflare.models.encoders import VisualEncoder
from medflare.models.generators.transformer import ReportTransformer
from medflare.models.generators.writing import ReportVocabulary


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch; both views of WCL are one forward pass."""
    with torch.device("cpu"):
        words = ReportVocabulary(folder).size
    shape = settings.model
    encoder = VisualEncoder(shape.encoder.model_copy(update={"weights": "none"}))
    transformer = ReportTransformer(shape, encoder.width, words)
    encoder.requires_grad_(settings.optimiser.encoder_lr_scale > 0)
    batch, tokens = settings.optimiser.batch, min(settings.max_report_tokens, shape.positions)

    def forward() -> Any:
        images = torch.zeros(batch, 1, shape.encoder.image_size, shape.encoder.image_size)
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        image = transformer.encode(encoder(images)[0])
        return log_likelihood(transformer(image, ids))

    return TrainingStep((encoder, transformer), forward, "fp32")
