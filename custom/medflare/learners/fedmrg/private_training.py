# SPDX-License-Identifier: Apache-2.0
"""FedMRG under differential privacy, in the reduced form of variant `private`: one adapter, and a loss of
single images.

What couples images or patients is off and refused by the settings: contrast within a batch and with the bank,
and the specialised adapter, which would teach what is sent (l2g) while it learns from the same patients
without noise. What is left is L_LM and L_CE, each a mean over one image's own tokens and conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.learners.fedmrg.settings import FedMRGSettings
from medflare.learners.fedmrg.training import Batch, DualAdapterTraining
from medflare.models.adapters.base import GENERIC
from medflare.models.report_generator import ReportGenerator

Load = Callable[[list[int]], Batch]


def private_module(model: ReportGenerator, settings: FedMRGSettings) -> nn.ModuleDict:
    """Return the layers that learn, in the mode in which hooks see them; the rest of the model is frozen."""
    model.adapters.use((GENERIC,), train=(GENERIC,))
    model.head.requires_grad_(settings.classification)
    model.prompt_table.requires_grad_(settings.model.prompts)
    model.train()
    model.backbone.model.train()  # of the frozen decoder hooks see nothing in eval mode
    return nn.ModuleDict(
        {
            "encoder": model.encoder,
            "projection": model.projection,
            "head": model.head,
            "prompts": model.prompt_table,
            "adapter": model.adapters.peft,
        }
    )


def image_losses(training: DualAdapterTraining, batch: Batch, generator: torch.Generator) -> Tensor:
    """Return L_LM + λ_cls L_CE of each image, (N,); no other image enters it."""
    model, settings = training.model, training.settings
    features = model.encode_images(batch.views)
    prompts = training.prompt_codes(features, batch.codes, generator)
    prefix, kept = model.prefix(features, prompts), batch.kept
    logits = model.decode(prefix, batch.reports, kept, alone=True).logits  # (K, vocabulary)
    tokens = F.cross_entropy(logits, batch.words, reduction="none")
    losses = tokens.new_zeros(kept.shape).masked_scatter(kept, tokens).sum(1) / kept.sum(1)  # (N,)
    if settings.classification:
        codes = F.cross_entropy(features.logits.flatten(0, 1), batch.codes.flatten(), reduction="none")
        losses = losses + settings.lambda_cls * codes.view(len(losses), -1).mean(1)
    return losses


def summed_loss(
    training: DualAdapterTraining, load: Load, generator: torch.Generator
) -> Callable[[Sequence[int]], Tensor]:
    """Return the loss of a private step: (rows) -> the sum over their images."""
    return lambda rows: image_losses(training, load(list(rows)), generator).sum()
