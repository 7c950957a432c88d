# SPDX-License-Identifier: Apache-2.0
"""Base of the classical report generators at one site; FedAvg averages whatever `live` returns (BL-1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from medflare.core.optimiser_state import moments, restore_moments
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.learners.generators.settings import GeneratorSettings
from medflare.learners.image_reports import ImageReportLearner
from medflare.learners.optim import adam_amsgrad, adamw, rate_factor

LOCAL = "local."
"""Before the names of running statistics that stay at the site."""


class GeneratorLearner(ImageReportLearner):
    """A generator whose optimiser lives for all rounds, and whose cosine spans them (BL-1)."""

    settings: GeneratorSettings

    def __init__(self, site: str, samples: Any, model: Any, settings: GeneratorSettings, seed: int) -> None:
        super().__init__(site, samples, model, settings, seed)
        self._optimiser = self._new_optimiser()

    def _new_optimiser(self) -> torch.optim.Optimizer:
        chosen = self.settings.optimiser
        encoder = list(self.model.encoder.parameters())
        if chosen.encoder_lr_scale == 0:
            self.model.encoder.requires_grad_(False)
        of_encoder = {id(parameter) for parameter in encoder}
        rest = [p for p in self.learning() if id(p) not in of_encoder and p.requires_grad]
        rates = [(rest, chosen.lr)]
        if chosen.encoder_lr_scale > 0:
            rates.append((encoder, chosen.lr * chosen.encoder_lr_scale))
        make = adam_amsgrad if chosen.amsgrad else adamw
        return make(rates, chosen.weight_decay)

    def learning(self) -> list[nn.Parameter]:
        """Return every parameter that may learn, the image encoder's among them."""
        return list(self.model.parameters())

    def round_optimiser(self) -> torch.optim.Optimizer:
        if not self.settings.optimiser.keep_moments:
            self._optimiser = self._new_optimiser()
        return self._optimiser

    def rate(self, plan: RoundPlan, progress: float) -> float:
        chosen = self.settings.optimiser
        of_run = (plan.round + progress) / max(plan.rounds, 1)
        return rate_factor(chosen.schedule, of_run, chosen.warmup)

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = super().local_state()
        if self.settings.optimiser.keep_moments:
            tensors = tensors | moments(self._optimiser, "optimiser")
        buffers: dict[str, Tensor] = self.model.local_buffers()
        return tensors | {LOCAL + n: b.detach().cpu().clone() for n, b in buffers.items()}, values

    @torch.no_grad()
    def _restore(self, tensors: State) -> None:
        if self.settings.optimiser.keep_moments:
            restore_moments(self._optimiser, tensors, "optimiser")
        for name, buffer in self.model.local_buffers().items():
            buffer.copy_(tensors[LOCAL + name])
