# SPDX-License-Identifier: Apache-2.0
"""R2GenGPT: an image encoder and a projection learn to speak to a frozen language model.

Source: Wang, Liu, Wang and Zhou, R2GenGPT, Meta-Radiology 2023; in FedMRG's tables with ResNet-101 (BL-9).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.idle_settings import idle_if
from medflare.models.backbone import Backbone
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator


class R2GenGPTModelSettings(ModelSettings):
    """Shape of R2GenGPT; its language model has no adapter, so that `lora` and `peft` have no effect."""

    projection_norm: bool = True
    prompts: bool = False

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if((True, "the language model has no adapter", "lora peft"))


class R2GenGPT(ReportGenerator):
    """Encoder and projection; the decoder is frozen, and nothing stands between image and report."""

    def __init__(
        self, backbone: Backbone, settings: ModelSettings, seed: int, encoder_file: Path | None = None
    ) -> None:
        super().__init__(backbone, settings, (), seed, encoder_file)
        self.head.requires_grad_(False)
        self.prompt_table.requires_grad_(False)

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return encoder and projection: nothing else learns."""
        shared = super().shared_tensors()
        return {n: t for n, t in shared.items() if n.startswith(("encoder.", "projection."))}

    @torch.no_grad()
    def generate(
        self, images: Tensor, decoding: DecodingSettings, codes: Tensor | None = None
    ) -> tuple[list[str], Tensor]:
        """Generate reports of images; the codes (B, 14) are all BLANK, as nothing is diagnosed before."""
        blank = torch.full((len(images), len(CONDITIONS)), int(Code.BLANK))
        return super().generate(images, decoding, blank)
