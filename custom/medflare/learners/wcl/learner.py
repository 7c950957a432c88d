# SPDX-License-Identifier: Apache-2.0
"""WCL at one site: R2Gen with a contrast of reports and images; clusters stay at the site (BL-6, BL-7)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medflare.core.conditions import Code
from medflare.core.data_order import derived_seed
from medflare.data.samples import Samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.transformer.learner import WriterLearner, open_writer
from medflare.learners.wcl.losses import weighted_contrast
from medflare.learners.wcl.settings import METHOD, WCLSettings
from medflare.models.backbone import autocast
from medflare.models.generators.writing import ReportWriter
from medflare.models.padding import IGNORED


def build(settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None) -> WCLLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen, model, samples = open_writer(METHOD, settings, site, seed, cache, ReportWriter)
    return WCLLearner(site.name, samples, model, chosen, seed)


class WCLLearner(WriterLearner[ReportWriter]):
    """WCL at one site.

    Attributes:
        clusters: (n,) cluster of each sample's report; training reports alone decide where clusters lie.
    """

    settings: WCLSettings

    def __init__(
        self, site: str, samples: Samples, model: ReportWriter, settings: WCLSettings, seed: int
    ) -> None:
        super().__init__(site, samples, model, settings, seed, METHOD.name)
        drawn = derived_seed(seed, site, "clusters") % 2**32
        self.clusters = report_clusters(samples.codes, self.train_rows, settings.clusters, drawn)

    def batch_losses(self, rows: list[int], generator: torch.Generator) -> dict[str, Tensor]:
        images, reports, targets = self._load(rows, generator)
        model, s = self.model, self.settings
        assert model.compare is not None
        with autocast(model.precision, str(model.device)):
            image = model.encode(images)  # (B, S, width)
            hidden = model.hidden(image, reports)  # (B, T, width)
            words = model.word_loss(hidden, targets)
            kept = (targets != IGNORED)[..., None]  # (B, T, 1)
            report = (hidden * kept).sum(1) / kept.sum(1)  # (B, width): mean over the report's tokens
            pairs = model.compare["image"](image.mean(1)), model.compare["report"](report)
        clusters = self.clusters[rows].to(model.device)
        contrast = weighted_contrast(
            pairs[0].float(), pairs[1].float(), clusters, s.temperature, s.hard_weight
        )
        loss = (1 - s.contrast_share) * words + s.contrast_share * contrast
        return {"loss": loss, "loss_words": words, "loss_contrast": contrast}


def report_clusters(codes: Tensor, training: list[int], count: int, seed: int) -> Tensor:
    """Return the cluster of each report, (n,), by k-means on the one-hot codes of training reports (BL-7).

    Args:
        codes: (n, 14) of all reports.
    """
    from sklearn.cluster import KMeans

    rows = np.eye(len(Code))[codes.numpy()].reshape(len(codes), -1)  # (n, 56)
    if not training:
        return torch.zeros(len(codes), dtype=torch.long)
    distinct = len(np.unique(rows[training], axis=0))
    model = KMeans(n_clusters=min(count, distinct), n_init=4, random_state=seed).fit(rows[training])
    return torch.from_numpy(model.predict(rows)).long()
