# SPDX-License-Identifier: Apache-2.0
"""CT2RepLong at one site: all visits of all patients together, each beside the visit before it (BL-18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.data_order import drawn
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.data.heterogeneity import site_facts
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import VisitSamples, open_visits
from medflare.learners.base import in_parts
from medflare.learners.ct2replong.settings import METHOD, CT2RepLongSettings
from medflare.learners.fedtar.evaluation import curve_metrics, finish_site, names_of
from medflare.learners.generators.learner import GeneratorLearner
from medflare.models.backbone import device_of
from medflare.models.encoder_folder import trained_precision
from medflare.models.generators.ct2replong import CT2RepLong, VisitVolumes
from medflare.models.generators.folder import export_settings
from medflare.models.generators.volume_encoder import fit_depth
from medflare.models.generators.writing import ReportVocabulary, parameter_counts
from medflare.models.padding import IGNORED, pad, pad_rows
from medflare.models.report_generator import DecodingSettings

PAPER = {
    "configuration": "volumes of 480 x 480 x 240, 3 + 3 layers of 512, memory of 3 rows, vocabulary 4,300",
    "total": 75_165_900,
}
"""Communicated parameters at the paper's shape, which tests/unit/learners/test_ct2replong.py counts again."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> CT2RepLongLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    torch.set_num_threads(site.threads)
    device = device_of(site.device)
    precision = trained_precision(site.backbone.precision, device, METHOD.name)
    model = CT2RepLong(chosen.model, ReportVocabulary(site.backbone.folder), precision, seed).to(device)
    samples = open_visits(site, chosen.model.encoder.stored_size, cache)
    return CT2RepLongLearner(site.name, samples, model.eval(), chosen, seed)


class CT2RepLongLearner(GeneratorLearner):
    """CT2RepLong at one site; one example is one visit.

    Attributes:
        former: row -> row of the same patient's visit before; None for the first.
    """

    samples: VisitSamples
    model: CT2RepLong
    settings: CT2RepLongSettings

    def __init__(
        self, site: str, samples: VisitSamples, model: CT2RepLong, settings: CT2RepLongSettings, seed: int
    ) -> None:
        super().__init__(site, samples, model, settings, seed)
        owners = samples.owners
        follows = [row > 0 and owners[row] == owners[row - 1] for row in range(len(owners))]
        self.former = [row - 1 if later and settings.former else None for row, later in enumerate(follows)]

    # ---- the site's examples -----------------------------------------------------------------------------

    def split_rows(self, split: str) -> list[int]:
        visits = self.samples.visits
        return [row for row in self.samples.rows(split) if visits[row].number <= self.settings.visits]

    def texts(self) -> list[str]:
        return self.samples.reports(range(len(self.samples)))

    def volumes(self, rows: Sequence[int]) -> VisitVolumes:
        """Return the inputs of some visits, on the CPU."""
        former = [self.former[row] for row in rows]
        later = torch.tensor([before is not None for before in former])
        present = [row if before is None else before for row, before in zip(rows, former, strict=True)]
        current, before = self._stacked(rows), self._stacked(present)
        most = self.settings.max_former_tokens
        begin = self.model.vocabulary.begin
        words = [[begin] if b is None else [begin, *self.tokens[b][:most]] for b in former]
        ids, mask = pad_rows(words, begin)
        return VisitVolumes(current, before * later[:, None, None, None], ids, mask.bool(), later)

    def _stacked(self, rows: Sequence[int]) -> Tensor:
        """Return the volumes of some visits, (B, slices, H, W)."""
        images, present = self.samples.images(rows)  # (B, S, 1, H, W), (B, S)
        return fit_depth(images[:, :, 0], present, self.settings.model.encoder.slices)

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> SiteDescription:
        model, settings = self.model, self.settings
        needed = {"visits", "former", "max_former_tokens", "max_report_tokens"}
        return SiteDescription(
            backbone=BackboneFacts.of(model),
            parameters=parameter_counts(model),
            export=export_settings(model, METHOD.name, settings.decoding)
            | settings.model_dump(include=needed),
            examples={split: len(self.split_rows(split)) for split in ("train", "val", "test")},
            skipped=self.samples.skipped(),
            heterogeneity=site_facts(self.samples.studies()),
            paper=PAPER,
        )

    # ---- training ----------------------------------------------------------------------------------------

    def batch_losses(self, rows: list[int], generator: torch.Generator) -> dict[str, Tensor]:
        return {"loss": self.model.visit_loss(self.volumes(rows), *pad([self.tokens[row] for row in rows]))}

    # ---- evaluation --------------------------------------------------------------------------------------

    @torch.no_grad()
    def rows_loss(self, rows: list[int]) -> float:
        total, count = 0.0, 0
        with self.model.evaluating():
            for part in in_parts(rows, self.settings.eval_batch):
                ids, targets = pad([self.tokens[row] for row in part])
                kept = int((targets != IGNORED).sum())
                total += float(self.model.visit_loss(self.volumes(part), ids, targets)) * kept
                count += kept
        return total / count

    def draft(self, rows: list[int], decoding: DecodingSettings | None = None) -> list[str]:
        """Return reports of `rows`; by the settings' decoding where none is given."""
        chosen = decoding or self.settings.decoding
        texts: list[str] = []
        with self.model.evaluating():
            for part in in_parts(rows, self.settings.eval_batch):
                texts += self.model.draft(self.volumes(part), chosen)
        return texts

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        if plan.hints.probe or plan.hints.loss_only:
            rows = self.split_rows(split)
            if plan.hints.probe:
                rows = drawn(rows, plan.hints.probe, self.seed, self.site, plan.round)
            rows = rows[: plan.limit]
            return Metrics({"loss": self.rows_loss(rows)}, len(rows)) if rows else Metrics()
        return curve_metrics(self, split, plan.limit if plan.limit is not None else self.settings.eval_limit)

    def metric_names(self) -> MetricNames:
        return names_of(self.settings.visits)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return finish_site(self, folder, plan.limit)
