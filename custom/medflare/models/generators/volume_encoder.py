# SPDX-License-Identifier: Apache-2.0
"""An encoder of CT volumes: blocks of slices become tokens, related within a block and then across blocks.

Source: Hamamci, Er and Menze, CT2Rep, MICCAI 2024, section 2.1 (its CT-ViT), without the codebook by which it
was trained to rebuild volumes (BL-17).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medflare.models.encoders import CommunicatedEncoder
from medflare.models.generators.settings import VolumeSettings


class VolumeEncoder(CommunicatedEncoder):
    """Volumes in [0, 1] to tokens."""

    def __init__(self, settings: VolumeSettings) -> None:
        super().__init__()
        self.settings, self.width = settings, settings.width
        values = settings.patch**2 * settings.slice_patch
        self.embed = nn.Sequential(
            nn.LayerNorm(values), nn.Linear(values, self.width), nn.LayerNorm(self.width)
        )
        self.square_places = nn.Parameter(0.02 * torch.randn(settings.squares, self.width))
        self.block_places = nn.Parameter(0.02 * torch.randn(settings.blocks, self.width))
        self.within, self.across = (self._layers() for _ in range(2))

    def _layers(self) -> nn.TransformerEncoder:
        width = self.width
        layer = nn.TransformerEncoderLayer(
            width, self.settings.attention_heads, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(width)
        return nn.TransformerEncoder(layer, self.settings.layers, norm, enable_nested_tensor=False)

    def forward(self, volumes: Tensor) -> Tensor:
        """Return tokens of volumes: (B, slices, H, W) -> (B, blocks * squares, width)."""
        s = self.settings
        cut = volumes.unflatten(1, (s.blocks, s.slice_patch))  # (B, t, p_t, H, W)
        cut = cut.unflatten(3, (-1, s.patch)).unflatten(5, (-1, s.patch))  # (B, t, p_t, h, p, w, p)
        values = cut.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(2, 3)  # (B, t, h w, p_t p p)
        tokens = self.embed(values) + self.square_places + self.block_places[:, None]  # (B, t, h w, width)
        batch, blocks = tokens.shape[:2]
        tokens = self.within(tokens.flatten(0, 1)).unflatten(0, (batch, blocks))
        tokens = self.across(tokens.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, s.squares))
        return tokens.transpose(1, 2).flatten(1, 2)

    @property
    def tokens(self) -> int:
        """Tokens of a volume."""
        return self.settings.blocks * self.settings.squares

    def shared_names(self) -> list[str]:
        """Return the names of communicated state: every weight, as there are no running statistics."""
        return list(self.state_dict())


def fit_depth(pictures: Tensor, present: Tensor, slices: int) -> Tensor:
    """Return volumes of so many slices: the middle of longer ones, shorter ones between slices of air.

    Args:
        pictures: (B, S, H, W). present: (B, S) bool, true where there is a slice; those stand first.
    """
    fitted = pictures.new_zeros(len(pictures), slices, *pictures.shape[2:])
    for row, (volume, kept) in enumerate(zip(pictures, present, strict=True)):
        volume = volume[kept]
        surplus = max(len(volume) - slices, 0) // 2
        volume = volume[surplus : surplus + slices]
        first = (slices - len(volume)) // 2
        fitted[row, first : first + len(volume)] = volume
    return fitted
