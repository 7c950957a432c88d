# SPDX-License-Identifier: Apache-2.0
"""One round of local training of a tagger."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from medflare.core.task_progress import with_progress
from medflare.learners.base import require_finite
from medflare.learners.client_terms import Watch, no_watch
from medflare.learners.optim import CosinePart, adamw, scale_rates, take_step
from medflare.learners.text_task.settings import AdamWSettings
from medflare.models.tagger import Tagged, Tagger


def train_round(
    tagger: Tagger,
    batches: Sequence[Sequence[Tagged]],
    settings: AdamWSettings,
    seed: int,
    site: str,
    part: CosinePart,
    watch: Watch = no_watch,
) -> dict[str, float]:
    """Train on `batches` in their order, once, with new moments; the tagger is in eval mode after.

    Args:
        site: named in errors.
        part: of the cosine.
        watch: shown the optimiser before the first step.

    Returns:
        `loss` (mean of the batches' word means), `steps`, `words`.

    Raises:
        UpdateError: the loss is not finite.
    """
    learning = [p for p in tagger.parameters() if p.requires_grad]
    optimiser = adamw([(learning, settings.lr)], settings.weight_decay)
    watch(optimiser, len(batches))
    losses, words = [], 0
    torch.manual_seed(seed)
    tagger.train()
    for step, batch in enumerate(with_progress(batches)):
        scale_rates(optimiser, part.factor(step / len(batches)))
        total, count = tagger.loss(batch)
        loss = total / max(count, 1)
        require_finite(loss, setting="settings.optimiser.lr", records="notes", site=site)
        take_step(optimiser, loss, settings.clip_norm)
        losses.append(loss.item())
        words += count
    tagger.eval()
    return {"loss": sum(losses) / len(losses), "steps": float(len(losses)), "words": float(words)}
