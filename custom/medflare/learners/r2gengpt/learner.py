# SPDX-License-Identifier: Apache-2.0
"""R2GenGPT at one site: encoder and projection learn and travel (BL-9)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.data.heterogeneity import site_facts
from medflare.data.samples import open_samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.generators.learner import GeneratorLearner
from medflare.learners.r2gengpt.settings import METHOD
from medflare.models.backbone import device_of, load_backbone
from medflare.models.generators.r2gengpt import R2GenGPT
from medflare.models.report_generator import export_settings

PAPER = {
    "configuration": "ResNet-101, Linear and LayerNorm into a frozen Llama-2-7B",
    "total": 50_901_056,
    "reported_millions": 51,
}
"""Communicated at the paper's shape: 42,500,160 + 8,392,704 + 8,192; counted again in
tests/unit/models/test_language_generators.py."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> R2GenGPTLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    device = device_of(site.device)
    torch.set_num_threads(site.threads)
    samples = open_samples(site, chosen.model.encoder.stored_size, cache)
    backbone = load_backbone(site.backbone.folder, site.backbone.precision, device)
    model = R2GenGPT(backbone, chosen.model, seed, site.encoder_weights).to(device)
    return R2GenGPTLearner(site.name, samples, model, chosen, seed)


class R2GenGPTLearner(GeneratorLearner):
    """R2GenGPT at one site."""

    model: R2GenGPT

    def describe(self) -> SiteDescription:
        model = self.model
        return SiteDescription(
            backbone=BackboneFacts.of(model.backbone),
            parameters={
                "encoder": sum(p.numel() for p in model.encoder.parameters()),
                "projection": sum(p.numel() for p in model.projection.parameters()),
            },
            export=export_settings(model, self.settings.decoding) | {"file": METHOD.name},
            examples=self.samples.examples(),
            skipped=self.samples.skipped(),
            heterogeneity=site_facts(self.samples.studies),
            paper=PAPER,
        )
