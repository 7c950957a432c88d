# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of FedTAR on the meta device (learners/footprint.py)."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medflare.learners.training_step import TEMPLATE_TOKENS, TrainingStep, decode, meta_decoder
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import attach
from medflare.models.encoders import VisualEncoder
from medflare.models.patient_adapter import PatientAdapter


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch of visits with one image.

    A frozen encoder has no part in a step: its patch tokens are computed once, before round 1.
    """
    all_learns = settings.train_backbone
    decoder = meta_decoder(folder, "decoder", "fp32" if all_learns else precision)
    attach(decoder, settings.model.adapter, (GENERIC,), 0).use((GENERIC,), (GENERIC,))
    encoder = VisualEncoder(settings.model.encoder.model_copy(update={"weights": "none"}))
    encoder.requires_grad_(all_learns)
    if all_learns:
        decoder.requires_grad_(True)
    hidden, components = int(decoder.config.hidden_size), settings.mixture.components
    bridge = nn.Linear(encoder.width, hidden)
    patient = PatientAdapter(decoder, settings.patient, components, 0) if settings.personal else None
    size, batch = settings.model.encoder.image_size, settings.batch
    prior = settings.max_prior_tokens if settings.prior_context else 0
    rest = TEMPLATE_TOKENS + prior + settings.max_report_tokens

    def forward() -> Any:
        grid = torch.zeros(batch, encoder.tokens, encoder.width)
        if all_learns:
            grid = encoder(torch.zeros(batch, 1, size, size))[0]
        inputs = torch.cat([bridge(grid), torch.zeros(batch, rest, hidden, requires_grad=True)], 1)
        with patient.patients(torch.zeros(batch, components)) if patient else nullcontext():
            return decode(decoder, inputs, settings.max_report_tokens)

    networks = (decoder, encoder, bridge) + ((patient,) if patient else ())
    return TrainingStep(networks, forward, "fp32" if all_learns else precision)
