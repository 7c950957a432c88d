# SPDX-License-Identifier: Apache-2.0
"""Losses, their gradients and drafts of FedTAR's model on the reports of a site's visits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from medflare.core.tensors import State
from medflare.data.visit_samples import VisitSamples
from medflare.learners.base import in_parts
from medflare.learners.fedtar.patch_tokens import CachedPatches, ComputedPatches, PatchSource
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.settings import FedTARSettings
from medflare.learners.fedtar.site_setup import patient_of
from medflare.models.longitudinal_generator import LongitudinalGenerator, VisitBatch
from medflare.models.padding import IGNORED, pad
from medflare.models.report_generator import DecodingSettings


class VisitReports:
    """The visits of one site and the model, with whatever weights it has now.

    Args:
        used: rows of visits that may be asked for.
    """

    def __init__(
        self,
        samples: VisitSamples,
        patients: PatientAssignments | None,
        model: LongitudinalGenerator,
        settings: FedTARSettings,
        used: Sequence[int],
    ) -> None:
        self.samples, self.patients, self.model, self.settings = samples, patients, model, settings
        self.patches: PatchSource = (
            ComputedPatches(samples, model, settings.rotation)
            if settings.train_backbone
            else CachedPatches(samples, model, used, settings.eval_batch)
        )
        reports = samples.reports(range(len(samples)))
        self.tokens = model.tokenise(reports, settings.max_report_tokens) if reports else []

    def batch(self, rows: Sequence[int], generator: torch.Generator | None = None) -> VisitBatch:
        """Return the batch of some rows; `generator` augments images of an encoder that learns."""
        patches, present = self.patches.patches(rows, generator)  # (B, m, S, C), (B, m)
        assigned = None
        if self.patients is not None:
            assigned = self.patients.assigned([patient_of(self.samples, row) for row in rows])  # (B, K)
        return VisitBatch(patches, present, self.samples.priors(rows), assigned)

    def losses(self, rows: Sequence[int], generator: torch.Generator | None = None) -> tuple[Tensor, int]:
        """Return (B, T) losses of the report tokens of `rows`, and how many tokens that is."""
        ids, targets = pad([self.tokens[row] for row in rows])  # (B, T)
        token_losses = self.model.token_losses(self.batch(rows, generator), ids, targets)
        return token_losses, int((targets != IGNORED).sum())

    @torch.no_grad()
    def mean_loss(self, rows: list[int]) -> float:
        """Return the mean negative log-likelihood per report token."""
        total, count = 0.0, 0
        with self.model.evaluating():
            for part in in_parts(rows, self.settings.eval_batch):
                token_losses, tokens = self.losses(part)
                total, count = total + float(token_losses.sum(dtype=torch.float64)), count + tokens
        return total / count

    def gradient(self, rows: list[int], parameters: Mapping[str, Tensor]) -> State:
        """Return the gradient of the mean loss per token at `parameters`, whose own gradients are dropped."""
        count = sum(len(self.tokens[row]) for row in rows)
        for parameter in parameters.values():
            parameter.grad = None
        with self.model.evaluating():
            for part in in_parts(rows, self.settings.eval_batch):
                (self.losses(part)[0].sum() / count).backward()
        gradient = {
            n: torch.zeros_like(p) if p.grad is None else p.grad.detach() for n, p in parameters.items()
        }
        for parameter in parameters.values():
            parameter.grad = None
        return gradient

    @torch.no_grad()
    def draft(self, rows: list[int], decoding: DecodingSettings) -> list[str]:
        """Return reports of `rows`."""
        with self.model.evaluating():
            return [
                text
                for part in in_parts(rows, self.settings.eval_batch)
                for text in self.model.draft(self.batch(part), decoding)
            ]
