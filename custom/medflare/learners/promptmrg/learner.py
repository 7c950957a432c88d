# SPDX-License-Identifier: Apache-2.0
"""PromptMRG at one site: diagnoses prompt the report; reports are retrieved from the site alone (BL-12)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.plan import RoundPlan
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.images import centre
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.base import in_parts
from medflare.learners.generators.learner import GeneratorLearner
from medflare.learners.promptmrg.logit_adjustment import adjusted, frequencies, positive_f1, scaled
from medflare.learners.promptmrg.settings import METHOD, PromptMRGSettings
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import device_of, load_backbone
from medflare.models.generators.promptmrg import PromptMRG
from medflare.models.generators.retrieval import ReportBank, report_features
from medflare.models.padding import IGNORED
from medflare.models.report_generator import ADAPTER_PREFIX, export_settings, parameter_counts
from medflare.models.token_losses import word_loss

PAPER = {
    "configuration": "ResNet-101, Llama-2-7B, LoRA of rank 16 on q and v projections, retrieval of width 512",
    "total": 61_540_984,
    "reported_millions": 59,
}
"""Communicated at the paper's shape, 59.41 M of them without retrieval; counted again in
tests/unit/models/test_language_generators.py."""
BASE = "logit_adjustment"
"""Name of the base values in the local state."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> PromptMRGLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    device = device_of(site.device)
    torch.set_num_threads(site.threads)
    samples = open_samples(site, chosen.model.encoder.stored_size, cache)
    backbone = load_backbone(site.backbone.folder, site.backbone.precision, device)
    model = PromptMRG(backbone, chosen.model, seed, site.encoder_weights).to(device)
    return PromptMRGLearner(site.name, samples, model, chosen, seed)


class PromptMRGLearner(GeneratorLearner):
    """PromptMRG at one site.

    Attributes:
        base: (14,) what positive logits are adjusted by, of this site's reports and drafts; it stays here.
    """

    settings: PromptMRGSettings
    model: PromptMRG

    def __init__(
        self, site: str, samples: Samples, model: PromptMRG, settings: PromptMRGSettings, seed: int
    ) -> None:
        model.adapters.use((GENERIC,), train=(GENERIC,))
        super().__init__(site, samples, model, settings, seed)
        numbers = {patient: i for i, patient in enumerate(sorted({s.patient_id for s in samples.studies}))}
        self.patients = torch.tensor([numbers[study.patient_id] for study in samples.studies])
        self.base = frequencies(samples.codes[self.train_rows])
        model.bank = self._bank()

    def _bank(self) -> ReportBank:
        """Return the training reports of this site by the image encoder before round 1."""
        bank = ReportBank(self.model.encoder, self.settings.retrieved)
        size = self.model.settings.encoder.image_size
        keys = [torch.zeros(0, self.model.encoder.width)]
        for part in in_parts(self.train_rows, self.settings.eval_batch):
            images = centre(self.samples.images(part), size).to(self.model.device)
            keys.append(bank.describe(images).cpu())
        table = self.model.backbone.model.get_input_embeddings().weight.detach()
        tokens = [self.tokens[row] for row in self.train_rows]
        values = report_features(tokens, table, self.model.retrieval_width)
        bank.fill(torch.cat(keys), values, self.patients[self.train_rows])
        return bank

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> SiteDescription:
        model = self.model
        counts = parameter_counts(model, GENERIC)
        parts = (model.query, model.attention)
        counts["retrieval"] = sum(p.numel() for part in parts for p in part.parameters())
        return SiteDescription(
            backbone=BackboneFacts.of(model.backbone),
            parameters=counts,
            adapter_config=model.adapters.config_dict() | {"base_model_name_or_path": model.backbone.name},
            export=export_settings(model, self.settings.decoding) | {"file": METHOD.name},
            examples=self.samples.examples(),
            skipped=self.samples.skipped(),
            heterogeneity=site_facts(self.samples.studies),
            paper=PAPER,
        )

    def live(self) -> dict[str, Tensor]:
        adapter = self.model.adapters.shared_parameters(GENERIC)
        return self.model.shared_tensors() | {ADAPTER_PREFIX + n: p for n, p in adapter.items()}

    def learning(self) -> list[nn.Parameter]:
        return [*super().learning(), *self.model.adapters.parameters(GENERIC)]

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round, then look anew at which diagnoses this site's validation images miss."""
        self.model.adapters.use((GENERIC,), train=(GENERIC,))
        update = super().fit(plan)
        if self.settings.logit_adjustment == "adaptive":
            self._adapt()
        self.model.adapters.use((GENERIC,))
        return update

    def batch_losses(self, rows: list[int], generator: torch.Generator) -> dict[str, Tensor]:
        images, reports, targets = self._load(rows, generator)
        codes = self.samples.codes[rows].to(self.model.device)
        features = self.model.encode_images(images, self.patients[rows])
        kept = targets != IGNORED
        decoded = self.model.decode(self.model.prefix(features, codes), reports, kept)
        words = word_loss(decoded.logits, targets[kept])
        logits = features.logits
        if self.settings.logit_adjustment != "none":
            logits = adjusted(logits, self.base.to(logits.device))
        diagnoses = F.cross_entropy(logits.flatten(0, 1), codes.flatten())
        return {
            "loss": words + self.settings.lambda_cls * diagnoses,
            "loss_words": words,
            "loss_cls": diagnoses,
        }

    @torch.no_grad()
    def _adapt(self) -> None:
        """Set the base values to the F1 of this site's validation diagnoses, where it has any (BL-11)."""
        held_out = self.samples.split_indices("val")
        predicted = []
        with self.model.evaluating():
            for part in in_parts(held_out, self.settings.eval_batch):
                images = centre(self.samples.images(part), self.model.settings.encoder.image_size)
                logits = self.model.encode_images(images.to(self.model.device)).logits
                predicted.append(logits.argmax(-1).cpu())
        if predicted:
            self.base = scaled(positive_f1(torch.cat(predicted), self.samples.codes[held_out]))

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = super().local_state()
        return tensors | {BASE: self.base.clone()}, values

    def _restore(self, tensors: State) -> None:
        super()._restore(tensors)
        self.base = tensors[BASE].clone()
