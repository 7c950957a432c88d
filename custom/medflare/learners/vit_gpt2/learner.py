# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 at one site: all weights of a ViT and a GPT-2 learn, and all of them are communicated.

Paper: FedViT-GPT2, section 3, resolutions VG-1 to VG-11. FedAvg, L-FedAvg and Krum differ at the server
alone: L-FedAvg reads the `val_loss` that `fit` reports (VG-4: of the site's own validation studies; VG-5:
after training).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.patient_privacy import PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.core.secure_random import secret_seed
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.differential_privacy.private_step import PrivateTraining
from medflare.learners.image_reports import ImageReportLearner
from medflare.learners.optim import adamw, rate_factor, scale_rates
from medflare.learners.private_round import PrivateImages
from medflare.learners.vit_gpt2.settings import METHOD, ViTGPT2LearnerSettings
from medflare.models.backbone import device_of
from medflare.models.padding import IGNORED
from medflare.models.vit_gpt2 import ViTGPT2, export_settings, parameter_counts
from medflare.models.vit_gpt2_folder import load_vit_gpt2

PAPER = {
    "configuration": "ViT-B/16 and GPT-2 with 12 cross-attention blocks",
    "total": 238_605_312,
    "bytes_fp32_per_direction": 954_421_248,
}
"""Communicated at the paper's shape: 239.2 M less the ViT's pooling layer, which nothing trains; counted
again in tests/unit/models/test_vit_gpt2.py."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> ViTGPT2Learner:
    """Build the learner of a site from the job's settings and the site's own file.

    `backbone.folder` of the site, where given, holds `encoder/` and `decoder/` (models.vit_gpt2_folder).
    """
    chosen = METHOD.resolve(settings)
    torch.set_num_threads(site.threads)
    model = load_vit_gpt2(
        site.backbone.folder, site.backbone.precision, device_of(site.device), chosen.model, seed
    )
    samples = open_samples(site, model.settings.encoder.stored_size, cache)
    return ViTGPT2Learner(site.name, samples, model, chosen, seed)


class ViTGPT2Learner(ImageReportLearner):
    """FedViT-GPT2 at one site."""

    settings: ViTGPT2LearnerSettings
    model: ViTGPT2

    def __init__(
        self, site: str, samples: Samples, model: ViTGPT2, settings: ViTGPT2LearnerSettings, seed: int
    ) -> None:
        super().__init__(site, samples, model, settings, seed)
        self.private: PrivateImages | None = None
        if settings.learns == "blocks":
            model.freeze_tables()
        if settings.dp is not None:
            self.private = PrivateImages.of(samples, self.train_rows, settings.dp, settings.local_epochs)
            model.train()
            self.private.check(model)
            model.eval()

    @property
    def patient_privacy(self) -> PatientPrivacy | None:
        return None if self.private is None else self.private.privacy

    def describe(self) -> SiteDescription:
        model = self.model
        return SiteDescription(
            backbone=BackboneFacts.of(model),
            parameters=parameter_counts(model),
            export=export_settings(model, self.settings.decoding),
            examples=self.samples.examples(),
            skipped=self.samples.skipped(),
            heterogeneity=site_facts(self.samples.studies),
            paper=PAPER,
        )

    def round_optimiser(self) -> torch.optim.AdamW:
        """Return a new AdamW: its moments begin anew in every round."""
        chosen = self.settings.optimiser
        learned = [p for p in self.model.parameters() if p.requires_grad]
        return adamw([(learned, chosen.lr)], chosen.weight_decay)

    def fit(self, plan: RoundPlan) -> Update:
        return super().fit(plan) if self.private is None else self._fit_privately(self.private, plan)

    def _fit_privately(self, private: PrivateImages, plan: RoundPlan) -> Update:
        """Train one round with differential privacy; no loss of validation images is reported."""
        chosen, optimiser = self.settings.optimiser, self.round_optimiser()
        generator = torch.Generator().manual_seed(secret_seed())  # why: `train_private_round`
        self.model.train()
        training = PrivateTraining(
            module=self.model,
            patients=private.rows.of_site(self.site),
            loss=lambda rows: self.summed_loss(rows, generator),
            chunk=chosen.batch,
            optimiser=optimiser,
            begin_step=lambda step, of: scale_rates(optimiser, self.rate(plan, step / of)),
        )
        return private.fit(self, plan, training, f"settings.optimiser.lr, which is {chosen.lr:g}")

    def summed_loss(self, rows: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return the sum over images of the mean negative log-likelihood of the image's own tokens."""
        images, reports, targets = self._load(list(rows), generator)
        logits = self.model.logits(images, reports)  # (B, T, vocabulary)
        tokens = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
        return (tokens.sum(1) / (targets != IGNORED).sum(1)).sum()

    def rate(self, plan: RoundPlan, progress: float) -> float:
        chosen = self.settings.optimiser
        return rate_factor(chosen.schedule, progress, chosen.warmup)
