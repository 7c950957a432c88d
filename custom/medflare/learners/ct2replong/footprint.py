# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of CT2RepLong on the meta device (learners/footprint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.learners.training_step import TrainingStep, log_likelihood
from medflare.models.generators.ct2replong import CT2RepLong, VisitVolumes
from medflare.models.generators.writing import ReportVocabulary


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch of visits, each with one before it."""
    with torch.device("cpu"):
        vocabulary = ReportVocabulary(folder)
    shape = settings.model
    model = CT2RepLong(shape, vocabulary, "fp32", 0)
    model.encoder.requires_grad_(settings.optimiser.encoder_lr_scale > 0)
    batch, tokens = settings.optimiser.batch, min(settings.max_report_tokens, shape.positions)
    before = min(settings.max_former_tokens, shape.positions - 1) + 1 if settings.former else 1

    def forward() -> Tensor:
        size = shape.encoder
        volume = torch.zeros(batch, size.slices, size.image_size, size.image_size)
        known = torch.ones(batch, before, dtype=torch.bool)
        words = torch.zeros(batch, before, dtype=torch.long)
        visits = VisitVolumes(volume, volume, words, known, torch.ones(batch, dtype=torch.bool))
        image = model.encode_visits(visits)
        return log_likelihood(model.logits(image, torch.zeros(batch, tokens, dtype=torch.long)))

    return TrainingStep((model,), forward, "fp32")
