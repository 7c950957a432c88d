# SPDX-License-Identifier: Apache-2.0
"""PromptMRG: diagnoses, made with the help of retrieved reports, prompt a language model.

Source: Jin, Che, Lin and Chen, PromptMRG, AAAI 2024; in FedMRG's tables its decoder is evidently Llama-2 with
LoRA in place of BERT (BL-10).
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.seeds import seeded
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import Backbone, autocast
from medflare.models.generators.retrieval import ReportBank
from medflare.models.report_generator import ModelSettings, ReportGenerator, VisualFeatures


class PromptMRGModelSettings(ModelSettings):
    """Shape of PromptMRG."""

    retrieval_width: int = Field(default=64, ge=4, description="of a report's features; 512 in the paper")
    retrieval_heads: int = Field(default=4, ge=1, description="of the attention to retrieved reports")


class PromptMRG(ReportGenerator):
    """FedMRG's generator with one adapter, and a diagnosis head that also reads retrieved reports.

    Attributes:
        bank: the site's reports; None where there are none, as at an unseen site: the head then reads zeros.
    """

    def __init__(
        self,
        backbone: Backbone,
        settings: PromptMRGModelSettings,
        seed: int,
        encoder_file: Path | None = None,
    ) -> None:
        super().__init__(backbone, settings, (GENERIC,), seed, encoder_file)
        width = settings.retrieval_width
        self.retrieval_width = width
        with seeded(seed):
            self.query = nn.Linear(self.encoder.width, width)
            self.attention = nn.MultiheadAttention(width, settings.retrieval_heads, batch_first=True)
            self.head = nn.Linear(self.encoder.width + width, len(CONDITIONS) * len(Code))
        self.bank: ReportBank | None = None

    def shared_tensors(self) -> dict[str, Tensor]:
        shared = super().shared_tensors()
        for name, part in (("query", self.query), ("attention", self.attention)):
            shared |= {f"{name}.{n}": p for n, p in part.named_parameters()}
        return shared

    def encode_images(self, images: Tensor, patients: Tensor | None = None) -> VisualFeatures:
        """Return the features of images, and the diagnoses that retrieved reports help to make.

        Args:
            images: (B, 1, H, W) in [0, 1].
            patients: (B,) number of each image's patient, whose own reports are not retrieved; None for
                images that are not of the training split.
        """
        tokens, pooled = self.encode(images)  # (B, S, C), (B, C)
        if self.bank is None or not len(self.bank.keys):
            reports = torch.zeros(len(images), 1, self.retrieval_width, device=images.device)
        else:
            reports = self.bank.find(images, patients)  # (B, k, R)
        query = self.query(pooled)[:, None]  # (B, 1, R)
        read = self.attention(query, reports, reports, need_weights=False)[0][:, 0]  # (B, R)
        logits = self.head(torch.cat([pooled, read], 1)).unflatten(1, (len(CONDITIONS), len(Code)))
        with autocast(self.backbone.precision, str(self.device)):
            visual = self.projection(tokens)  # (B, S, hidden)
        return VisualFeatures(visual, pooled, logits)
