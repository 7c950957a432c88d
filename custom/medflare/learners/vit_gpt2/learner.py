# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 at one site: all weights of a ViT and a GPT-2 learn, and all of them are communicated.

Paper: FedViT-GPT2, section 3, resolutions VG-1 to VG-11. FedAvg, L-FedAvg and Krum differ at the server
alone: L-FedAvg reads the `val_loss` that `fit` reports (VG-4: of the site's own validation studies; VG-5:
after training).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.data_order import batches, derived_seed
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.images import augment, centre
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.base import BaseLearner, require_finite
from medflare.learners.client_terms.base import Shared
from medflare.learners.optim import adamw, rate_factor, scale_rates, take_step
from medflare.learners.vit_gpt2.settings import METHOD, ViTGPT2LearnerSettings
from medflare.models.backbone import device_of
from medflare.models.padding import pad
from medflare.models.vit_gpt2 import ViTGPT2, export_settings, parameter_counts
from medflare.models.vit_gpt2_folder import load_vit_gpt2
from medflare.tasks.reports.evaluation import evaluate_split, finish_site, names_of, split_loss
from medflare.tasks.scoring import AdapterKind

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


class ViTGPT2Learner(BaseLearner):
    """FedViT-GPT2 at one site."""

    def __init__(
        self, site: str, samples: Samples, model: ViTGPT2, settings: ViTGPT2LearnerSettings, seed: int
    ) -> None:
        self.samples, self.model, self.settings = samples, model, settings
        self.train_rows = samples.split_indices("train")
        super().__init__(site, seed, len(self.train_rows))
        self.tokens = model.tokenise(samples.reports, settings.max_report_tokens)

    # ---- what is declared --------------------------------------------------------------------------------

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

    def live(self) -> Shared:
        return self.model.shared_tensors()

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round with a new AdamW; `val_loss` (VG-4, VG-5) where the site has validation images."""
        started = time.monotonic()
        seed = derived_seed(self.seed, self.site, plan.round)
        batch = min(self.settings.optimiser.batch, max(len(self.train_rows), 1))
        cut = batches(self._round_rows(plan), [len(t) for t in self.tokens], batch, seed)
        self.terms.begin(plan)
        metrics = {"loss": self._train(cut, seed), "steps": float(len(cut))}
        output = self.terms.finish()
        if held_out := self.samples.split_indices("val"):
            metrics["val_loss"] = split_loss(self, held_out)
        metrics |= output.metrics | {"seconds": time.monotonic() - started}
        return Update(
            delta=self.delta(),
            examples=len(self.train_rows),
            metrics=metrics,
            sums=output.sums,
            factor=output.factor,
        )

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Return the training images that this round visits."""
        batch, epochs = self.settings.optimiser.batch, self.settings.local_epochs
        taken = self.round_examples(plan, len(self.train_rows), batch, epochs, record="image")
        return [self.train_rows[i] for i in taken]

    def _train(self, cut: list[list[int]], seed: int) -> float:
        """Take one step on each batch; the mean of their losses."""
        chosen = self.settings.optimiser
        optimiser = adamw([(list(self.model.parameters()), chosen.lr)], chosen.weight_decay)
        self.terms.watch(optimiser, len(cut))
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model.train()
        total = 0.0
        for step, rows in enumerate(cut):
            scale_rates(optimiser, rate_factor(chosen.schedule, step / len(cut), chosen.warmup))
            loss = self.model.report_loss(*self._load(rows, generator))
            require_finite(loss, setting="settings.optimiser.lr", records="images", site=self.site)
            take_step(optimiser, loss, chosen.clip_norm)
            total += loss.item() / len(cut)
        self.model.eval()
        return total

    def _load(self, rows: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return images (B, 1, s, s), report ids (B, T) and targets (B, T) of one batch, on the device."""
        stored, size = self.samples.images(rows), self.model.settings.encoder.image_size
        images = (
            augment(stored, size, self.settings.rotation, generator)
            if self.settings.augment
            else centre(stored, size)
        )
        reports, targets = pad([self.tokens[i] for i in rows])
        device = self.model.device
        return images.to(device), reports.to(device), targets.to(device)

    # ---- evaluation and what stays -----------------------------------------------------------------------

    def adapters(self) -> dict[AdapterKind, Callable[[], None]]:
        """Return what puts each adapter into use: nothing, the shared model always is."""
        return {"generic": lambda: None}

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        return evaluate_split(self, split, plan)

    def metric_names(self) -> MetricNames:
        return names_of(self)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return finish_site(self, folder, plan.limit)
