# SPDX-License-Identifier: Apache-2.0
"""A ViT whose patches come from convolutions: a small one then learns to see from thousands of images.

Source: Xiao, Singh, Mintun, Darrell, Dollár and Girshick, Early Convolutions Help Transformers See Better,
NeurIPS 2021. Group norm in place of batch norm, whose running statistics cannot be averaged over sites.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

KEY = "stem_channels"
"""Key of a ViT's configuration: channels of the convolutions, each of which halves the image."""
GROUPS = 8


class ConvolutionalStem(nn.Conv2d):
    """3 × 3 convolutions of stride 2, then a projection of each patch to the ViT's width.

    It is itself the projection, a convolution of kernel 1, because transformers asks for its weight's dtype.

    Args:
        channels: of the image; stem: of each convolution; width: of the ViT.
    """

    def __init__(self, channels: int, stem: Sequence[int], width: int) -> None:
        super().__init__(stem[-1], width, 1)
        self.convolutions = nn.Sequential(
            *(
                layer
                for before, after in pairwise((channels, *stem))
                for layer in (
                    nn.Conv2d(before, after, 3, 2, 1, bias=False),
                    nn.GroupNorm(math.gcd(GROUPS, after), after),
                    nn.ReLU(),
                )
            )
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the patches (B, width, H/patch, W/patch) of images (B, channels, H, W)."""
        return super().forward(self.convolutions(input))


def stem_of(config: Any) -> tuple[int, ...]:
    """Return the channels of the stem that a ViT's configuration names; () for a plain ViT."""
    return tuple(config.to_dict().get(KEY) or ())


def new_vit(config: Any) -> Any:
    """Return a ViT with random weights and the stem of its configuration, without a pooling layer."""
    return _vit_class()(config)


def read_vit(folder: Path) -> Any:
    """Return the pretrained ViT of a local folder, fp32, with its stem if it has one."""
    from transformers import AutoConfig, ViTModel

    stem = stem_of(AutoConfig.from_pretrained(folder, local_files_only=True))
    reader = _vit_class() if stem else ViTModel
    return reader.from_pretrained(folder, local_files_only=True, dtype=torch.float32)


@cache
def _vit_class() -> Any:
    """Return the class; it is made here because importing transformers takes seconds."""
    from transformers import ViTModel

    class StemViT(ViTModel):
        """transformers' ViT with the stem of its configuration, which `from_pretrained` reads too."""

        def __init__(self, config: Any) -> None:
            super().__init__(config, add_pooling_layer=False)
            if stem := stem_of(config):
                stem_module = ConvolutionalStem(config.num_channels, stem, config.hidden_size)
                self.embeddings.patch_embeddings.projection = stem_module

    return StemViT
