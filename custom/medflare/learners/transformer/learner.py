# SPDX-License-Identifier: Apache-2.0
"""The Transformer and R2Gen at one site; BL-1 to BL-5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from medflare.core.method import Method
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.data.heterogeneity import site_facts
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.generators.learner import GeneratorLearner
from medflare.learners.transformer.settings import R2GEN, TRANSFORMER
from medflare.models.backbone import device_of
from medflare.models.encoder_folder import trained_precision
from medflare.models.generators.folder import export_settings
from medflare.models.generators.writing import (
    ReportVocabulary,
    ReportWriter,
    VocabularyWriter,
    parameter_counts,
)

WriterT = TypeVar("WriterT", bound=VocabularyWriter)

PAPER: dict[str, dict[str, Any]] = {
    "transformer": {
        "configuration": "ResNet-101, 3 + 3 layers of 512, vocabulary 4,300",
        "total": 63_208_204,
        "without_memory": 60_581_644,
        "reported_millions": 63,
    },
    "r2gen": {
        "configuration": "ResNet-101, 3 + 3 layers of 512, memory of 3 rows, vocabulary 4,300",
        "total": 82_101_004,
        "reported_millions": 82,
    },
    "wcl": {
        "configuration": "R2Gen with two projections of 256, vocabulary 4,300",
        "total": 82_363_660,
        "reported_millions": 203,
    },
    "dcl": {
        "configuration": "ViT-B/16, a graph of 70 nodes, text network of 12 layers of 768, vocabulary 4,300",
        "total": 219_458_001,
        "without_graph": 203_640_785,
        "reported_millions": 203,
    },
}
"""Communicated parameters at the papers' shapes, which tests/unit/models/test_generators.py counts again, and
what FedMRG's tables say."""


def open_writer(
    method: Method[Any],
    settings: Mapping[str, Any],
    site: SiteConfig,
    seed: int,
    cache: Path | None,
    writer: Callable[..., WriterT],
) -> tuple[Any, WriterT, Samples]:
    """Return resolved settings, the model before round 1 and the site's samples.

    Args:
        writer: class of the model.
    """
    chosen = method.resolve(settings)
    torch.set_num_threads(site.threads)
    device = device_of(site.device)
    precision = trained_precision(site.backbone.precision, device, method.name)
    vocabulary = ReportVocabulary(site.backbone.folder)
    model = writer(chosen.model, vocabulary, precision, seed, site.encoder_weights).to(device)
    samples = open_samples(site, chosen.model.encoder.stored_size, cache)
    return chosen, model.eval(), samples


def build_transformer(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> WriterLearner[ReportWriter]:
    """Build the Transformer's learner of a site from the job's settings and the site's own file."""
    chosen, model, samples = open_writer(TRANSFORMER, settings, site, seed, cache, ReportWriter)
    return WriterLearner(site.name, samples, model, chosen, seed, TRANSFORMER.name)


def build_r2gen(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> WriterLearner[ReportWriter]:
    """Build R2Gen's learner of a site from the job's settings and the site's own file."""
    chosen, model, samples = open_writer(R2GEN, settings, site, seed, cache, ReportWriter)
    return WriterLearner(site.name, samples, model, chosen, seed, R2GEN.name)


class WriterLearner(GeneratorLearner, Generic[WriterT]):
    """A generator with a vocabulary of its own.

    Args:
        method: its name, of the result's files.
    """

    model: WriterT

    def __init__(
        self, site: str, samples: Samples, model: WriterT, settings: Any, seed: int, method: str
    ) -> None:
        super().__init__(site, samples, model, settings, seed)
        self.method = method

    def describe(self) -> SiteDescription:
        model = self.model
        return SiteDescription(
            backbone=BackboneFacts.of(model),
            parameters=parameter_counts(model),
            export=export_settings(model, self.method, self.settings.decoding),
            examples=self.samples.examples(),
            skipped=self.samples.skipped(),
            heterogeneity=site_facts(self.samples.studies),
            paper=PAPER[self.method],
        )
