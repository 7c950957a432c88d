# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of DCL on the meta device (learners/footprint.py)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.conditions import CONDITIONS
from medflare.learners.training_step import TrainingStep, float_mask, log_likelihood
from medflare.models.generators.dcl import DCL
from medflare.models.generators.writing import ReportVocabulary


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the model, its momentum networks and a forward pass of one batch.

    With the contrast each report is read alone, and in three pairs with an image.
    """
    with torch.device("cpu"):
        vocabulary = ReportVocabulary(folder)
    shape = settings.model
    encoder = shape.encoder.model_copy(update={"weights": "none"})
    model = DCL(shape.model_copy(update={"encoder": encoder}), vocabulary, "fp32", 0)
    momentum = copy.deepcopy(model).requires_grad_(False)
    model.encoder.requires_grad_(settings.optimiser.encoder_lr_scale > 0)
    batch, tokens = settings.optimiser.batch, min(settings.max_report_tokens, shape.positions)

    def first_states(images: Tensor | None, texts: int) -> Tensor:
        """As `DCL.read`, with a mask that meta tensors can have."""
        ids = torch.zeros(texts, tokens + 1, dtype=torch.long)
        mask = float_mask(texts, tokens + 1, torch.float32)
        read = model.text.bert(input_ids=ids, attention_mask=mask, encoder_hidden_states=images)
        first: Tensor = read.last_hidden_state[:, 0]
        return first

    def forward() -> Tensor:
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        seen = model.see(torch.zeros(batch, 1, encoder.image_size, encoder.image_size))
        image = model.graph(seen, torch.zeros(batch, shape.retrieved, len(CONDITIONS), dtype=torch.long))
        loss = log_likelihood(model.logits(image, ids))
        if settings.contrast:
            loss = loss + model.image_features(image).sum()
            loss = loss + model.text_projection(first_states(None, batch)).sum()
            loss = loss + model.match(first_states(image.repeat(3, 1, 1), 3 * batch)).sum()
        return loss

    return TrainingStep((model, momentum), forward, "fp32")
