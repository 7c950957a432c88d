# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of the Transformer's family on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.learners.training_step import TrainingStep, log_likelihood
from medflare.models.generators.writing import ReportVocabulary, ReportWriter


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch; both views of WCL are one forward pass."""
    with torch.device("cpu"):
        vocabulary = ReportVocabulary(folder)
    encoder = settings.model.encoder.model_copy(update={"weights": "none"})
    shape = settings.model.model_copy(update={"encoder": encoder})
    model = ReportWriter(shape, vocabulary, "fp32", 0)
    model.encoder.requires_grad_(settings.optimiser.encoder_lr_scale > 0)
    batch, tokens = settings.optimiser.batch, min(settings.max_report_tokens, shape.positions)

    def forward() -> Tensor:
        images = torch.zeros(batch, 1, encoder.image_size, encoder.image_size)
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        return log_likelihood(model.logits(model.encode(images), ids))

    return TrainingStep((model,), forward, "fp32")
