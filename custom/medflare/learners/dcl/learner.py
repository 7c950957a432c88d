# SPDX-License-Identifier: Apache-2.0
"""DCL at one site: momentum networks and the queue of its own reports stay here (BL-13 to BL-16)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.data.samples import Samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.dcl.losses import hard_negatives, soft_contrast
from medflare.learners.dcl.settings import METHOD, DCLSettings
from medflare.learners.transformer.learner import WriterLearner, open_writer
from medflare.models.backbone import autocast
from medflare.models.generators.dcl import DCL, MATCH
from medflare.models.generators.report_queue import ReportQueue
from medflare.models.generators.writing import word_loss

MOMENTUM, QUEUE = "momentum.", "queue."
"""Before the names of the momentum networks' weights, and of the queue, in the local state."""
TEMPERATURES = (0.001, 0.5)
"""Bounds of the temperature, as in the released code."""


def build(settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None) -> DCLLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen, model, samples = open_writer(METHOD, settings, site, seed, cache, DCL)
    return DCLLearner(site.name, samples, model, chosen, seed)


class DCLLearner(WriterLearner[DCL]):
    """DCL at one site.

    Attributes:
        momentum: a copy of the model that follows its weights slowly; it never leaves.
        progress: share of the run that is over, by which targets become soft.
    """

    settings: DCLSettings

    def __init__(self, site: str, samples: Samples, model: DCL, settings: DCLSettings, seed: int) -> None:
        super().__init__(site, samples, model, settings, seed, METHOD.name)
        self.momentum = copy.deepcopy(model).eval().requires_grad_(False)
        self.begun = False
        numbers = {patient: i for i, patient in enumerate(sorted({s.patient_id for s in samples.studies}))}
        self.patients = torch.tensor([numbers[study.patient_id] for study in samples.studies])
        self.queue = ReportQueue(settings.queue, settings.model.contrast_width)
        model.queue = self.queue if settings.retrieval else None
        self.progress = 0.0
        self._batch: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    # ---- training ----------------------------------------------------------------------------------------

    def _put_shared(self, state: State) -> None:
        """Copy a state in; the momentum networks begin as the first one."""
        super()._put_shared(state)
        if not self.begun:
            self._follow(0.0)
            self.begun = True

    def rate(self, plan: RoundPlan, progress: float) -> float:
        self.progress = (plan.round + progress) / max(plan.rounds, 1)
        return super().rate(plan, progress)

    def after_step(self) -> None:
        """Keep the temperature in its bounds; the queue takes the batch, and momentum networks follow."""
        if self._batch is not None:
            self.queue.add(*self._batch)
        with torch.no_grad():
            self.model.temperature.clamp_(*TEMPERATURES)
        self._follow(self.settings.momentum)

    @torch.no_grad()
    def _follow(self, momentum: float) -> None:
        """Move the momentum networks to `momentum` of themselves and the rest of the model's weights."""
        live = moving(self.model)
        for name, kept in moving(self.momentum).items():
            kept.mul_(momentum).add_(live[name], alpha=1 - momentum)

    def batch_losses(self, rows: list[int], generator: torch.Generator) -> dict[str, Tensor]:
        images, reports, targets = self._load(rows, generator)
        model, patients = self.model, self.patients[rows]
        with autocast(model.precision, str(model.device)):
            seen = model.see(images)
            codes = model.retrieve(seen, patients)  # (B, k, 14)
            image = model.graph(seen, codes)  # (B, 1 + S, width)
            words = word_loss(model.logits(image, model.after_begin(reports)), targets)
            if self.settings.contrast:
                contrast, similar = self._contrast(images, reports, targets, image, codes, rows)
                match = self._match(reports, targets, image, similar, generator)
            else:
                contrast = match = torch.zeros((), device=model.device)
        return {
            "loss": words + contrast + match,
            "loss_words": words,
            "loss_contrast": contrast,
            "loss_match": match,
        }

    def _contrast(
        self, images: Tensor, reports: Tensor, targets: Tensor, image: Tensor, codes: Tensor, rows: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the contrast of a batch with the queue, and (B, B) its own similarities."""
        model, slow, queue = self.model, self.momentum, self.queue
        with torch.no_grad():
            slow_image = slow.image_features(slow.graph(slow.see(images), codes))  # (B, width)
            slow_text = slow.report_features(reports, targets)
            filled = queue.filled
            image_keys = torch.cat([slow_image, queue.images[filled].to(slow_image.device)])  # (B + Q, width)
            text_keys = torch.cat([slow_text, queue.texts[filled].to(slow_text.device)])
        share = self.settings.soft_share
        if self.settings.soft_ramp:
            share *= min(1.0, self.progress / self.settings.soft_ramp)
        own_image, own_text = model.image_features(image), model.report_features(reports, targets)
        of_images = soft_contrast(own_image, slow_image, text_keys, share, model.temperature)
        of_reports = soft_contrast(own_text, slow_text, image_keys, share, model.temperature)
        self._batch = (slow_image, slow_text, self.samples.codes[rows], self.patients[rows])
        return (of_images + of_reports) / 2, own_image @ own_text.T / model.temperature

    def _match(
        self,
        reports: Tensor,
        targets: Tensor,
        image: Tensor,
        similar: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return how badly pairs are told from images beside another's report."""
        model, size = self.model, len(reports)
        if size < 2:
            return torch.zeros((), device=image.device)
        report_of = hard_negatives(similar, generator)  # (B,) another report for each image
        image_of = hard_negatives(similar.T, generator)  # (B,) another image for each report
        order = torch.arange(size)
        texts = torch.cat([order, order, report_of])
        pictures = torch.cat([order, image_of, order])
        states = model.read(reports[texts], targets[texts], MATCH, image[pictures])  # (3 B, width)
        pairs = (torch.arange(3 * size) < size).long().to(image.device)
        return F.cross_entropy(model.match(states).float(), pairs)

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = super().local_state()
        slow = {MOMENTUM + n: t.detach().cpu().clone() for n, t in moving(self.momentum).items()}
        queue = {QUEUE + name: tensor for name, tensor in self.queue.state().items()}
        return tensors | slow | queue, values | {"begun": self.begun}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        super().load_local_state(tensors, values)
        self.begun = bool(values["begun"])

    @torch.no_grad()
    def _restore(self, tensors: State) -> None:
        super()._restore(tensors)
        for name, tensor in moving(self.momentum).items():
            tensor.copy_(tensors[MOMENTUM + name])
        self.queue.restore({n.removeprefix(QUEUE): t for n, t in tensors.items() if n.startswith(QUEUE)})


def moving(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights, each once, and its running statistics."""
    kept = set(model.state_dict())
    buffers = {n: b for n, b in model.named_buffers() if n in kept and b.is_floating_point()}
    return dict(model.named_parameters()) | buffers
