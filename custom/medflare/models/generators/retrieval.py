# SPDX-License-Identifier: Apache-2.0
"""A site's own training reports as features, found by the likeness of images; they never leave the site.

PromptMRG retrieves with CLIP. Here images are compared by the frozen image encoder that the run began with,
and a report is the mean of its tokens' frozen embeddings (BL-12).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.data_order import derived_seed
from medflare.models.encoders import VisualEncoder


class ReportBank:
    """Features of one site's training reports.

    Args:
        encoder: as it is before round 1; copied and frozen.
        count: reports that an image is given.
    """

    def __init__(self, encoder: VisualEncoder, count: int) -> None:
        self.encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
        self.count = count
        self.keys = torch.zeros(0, encoder.width)
        self.values = torch.zeros(0, 1)
        self.patients = torch.zeros(0, dtype=torch.long)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """Return unit features, (B, C), of images (B, 1, H, W) in [0, 1]."""
        return F.normalize(self.encoder(images)[1].float(), dim=1)

    def fill(self, keys: Tensor, values: Tensor, patients: Tensor) -> None:
        """Take the features of training images (n, C) and reports (n, R), and each one's patient (n,)."""
        self.keys, self.values, self.patients = keys, values, patients

    @torch.no_grad()
    def find(self, images: Tensor, patients: Tensor | None = None) -> Tensor:
        """Return the features of the reports of the most similar images, (B, k, R).

        Args:
            images: (B, 1, H, W). patients: (B,) whose own reports are left out: else the report to write
                would be among those that help to write it.
        """
        similar = self.describe(images) @ self.keys.to(images.device).T  # (B, n)
        if patients is not None:
            of_same_patient = patients.to(images.device)[:, None] == self.patients.to(images.device)[None]
            similar = similar.masked_fill(of_same_patient, float("-inf"))
        best = similar.topk(min(self.count, similar.shape[1]), 1)  # (B, k)
        found = self.values.to(images.device)[best.indices]  # (B, k, R)
        return found * torch.isfinite(best.values)[..., None]


def report_features(tokens: Sequence[Sequence[int]], table: Tensor, width: int) -> Tensor:
    """Return unit features of reports, (n, width): means of token embeddings under a fixed random projection.

    The projection is drawn from a seed that is the same everywhere (Johnson and Lindenstrauss), so that it is
    neither trained nor sent.

    Args:
        tokens: ids of each report. table: (vocabulary, h) frozen embeddings.
    """
    generator = torch.Generator().manual_seed(derived_seed(0, "report features", table.shape[1], width))
    projection = torch.randn(table.shape[1], width, generator=generator) / width**0.5
    rows = [table[torch.tensor(list(ids), device=table.device)].float().mean(0).cpu() for ids in tokens]
    means = torch.stack(rows) if rows else torch.zeros(0, table.shape[1])
    return F.normalize(means @ projection, dim=1)
