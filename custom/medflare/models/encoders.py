# SPDX-License-Identifier: Apache-2.0
"""Visual encoders F_e: radiograph in, a grid of patch features out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from medflare.core.config import Settings
from medflare.core.errors import ConfigError, DataError
from medflare.models.backbone import LOADING

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RUNNING = ("running_mean", "running_var")
"""Ends of the names of batch norm statistics."""
CLASSIFIERS = ("fc.", "heads.", "classifier.", "layernorm.")
"""Starts of the names of tensors that only a classifier has."""
CVT_21: dict[str, Any] = {"depth": [1, 4, 16]}
"""Settings in which CvT-21 differs from the smallest of its family."""
IN_FOLDER = ("model.safetensors", "pytorch_model.bin")


class EncoderSettings(Settings):
    """Settings of the image encoder.

    Attributes:
        name: `small` is ours, of 0.3 million parameters; the others are torchvision's and transformers'.
        weights: `embedded` (ours, only for `small`), `none`, or `site`: the file of torchvision weights, or
            for `cvt_21` the Hugging Face folder, that the site's own site.yaml names as `encoder_weights`; a
            job names no files at a hospital.
        image_size: side of what the encoder sees, in pixels.
        token_grid: pool the patch grid to this many rows and columns; null keeps it.
        crop_margin: images are stored this much larger than they are seen, so that a crop can move.
        batch_norm: `average` shares running statistics like weights, `local` keeps them.
    """

    name: Literal["small", "resnet18", "resnet50", "resnet101", "vit_b_16", "cvt_21"] = "small"
    weights: Literal["embedded", "none", "site"] = "embedded"
    image_size: int = Field(default=96, ge=8)
    token_grid: PositiveInt | None = None
    crop_margin: float = Field(default=256 / 224, ge=1)
    batch_norm: Literal["average", "local"] = "average"

    @property
    def stored_size(self) -> int:
        """Side of a stored image, from which `image_size` is cut."""
        return round(self.image_size * self.crop_margin)


class SmallResNet(nn.Module):
    """A residual network of 0.3 M parameters with group norm, for one grey channel.

    Group norm because batch statistics of small, different hospitals do not average well and
    per-example clipping must stay possible. Stride 16.
    """

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 5, stride=2, padding=2, bias=False)
        self.norm = nn.GroupNorm(8, widths[0])
        self.blocks = nn.ModuleList(ResidualBlock(before, after) for before, after in pairwise(widths))
        self.width = widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Return a feature grid: (B, 1, H, W) -> (B, width, H/16, W/16); every stage halves the grid."""
        x = F.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return x


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, the first with stride 2, around a strided shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, after)
        self.shortcut = nn.Conv2d(before, after, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Halve the resolution: (B, before, H, W) -> (B, after, H/2, W/2)."""
        y = F.relu(self.norm1(self.conv1(x)))  # (B, after, H/2, W/2)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class CommunicatedEncoder(nn.Module, ABC):
    """An image encoder that names which of its tensors are communicated."""

    @abstractmethod
    def shared_names(self) -> list[str]:
        """Return the names of communicated state."""

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return the communicated tensors themselves, by name with `encoder.` before it."""
        tensors = self.state_dict(keep_vars=True)
        return {f"encoder.{name}": tensors[name] for name in self.shared_names()}

    def local_buffers(self) -> dict[str, Tensor]:
        """Return the running statistics that stay at the site (`batch_norm: local`), named as shared ones."""
        shared = set(self.shared_names())
        return {
            f"encoder.{name}": value
            for name, value in self.state_dict(keep_vars=True).items()
            if name not in shared and name.endswith(RUNNING)
        }


class VisualEncoder(CommunicatedEncoder):
    """One trunk behind one interface: images in [0, 1] to patch tokens and a pooled feature."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: EncoderSettings, weights_file: Path | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.trunk, self.width = _trunk(settings, weights_file)
        channels = 1 if settings.name == "small" else 3
        mean = torch.tensor(IMAGENET_MEAN if channels == 3 else (0.5,)).view(1, channels, 1, 1)
        std = torch.tensor(IMAGENET_STD if channels == 3 else (0.25,)).view(1, channels, 1, 1)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return patch tokens (B, S, C) and pooled features (B, C), not normalised, of images in [0, 1].

        Args:
            images: (B, 1, H, W).
        """
        x = (images.expand(-1, self.mean.shape[1], -1, -1) - self.mean) / self.std  # (B, channels, H, W)
        grid = self.trunk(x)  # (B, C, h, w)
        pooled = grid.mean((2, 3))  # (B, C)
        if self.settings.token_grid is not None:
            grid = F.adaptive_avg_pool2d(grid, self.settings.token_grid)
        return grid.flatten(2).transpose(1, 2), pooled  # (B, S = h·w, C)

    @property
    def tokens(self) -> int:
        """Number of patch tokens of an image."""
        grid = self.settings.token_grid
        if grid is None:
            stride = 16 if self.settings.name in ("small", "vit_b_16", "cvt_21") else 32
            grid = -(-self.settings.image_size // stride)
        return grid * grid

    def shared_names(self) -> list[str]:
        """Return the names of communicated state: weights, and running statistics unless they stay local.

        Batch counters are never communicated: they are not averages of anything.
        """
        names = [name for name in self.state_dict() if not name.endswith("num_batches_tracked")]
        if self.settings.batch_norm == "local":
            names = [name for name in names if not name.endswith(RUNNING)]
        return names


class _ViTGrid(nn.Module):
    """torchvision's ViT, giving its patch tokens as a grid."""

    def __init__(self, image_size: int) -> None:
        super().__init__()
        from torchvision.models import vit_b_16

        self.vit = vit_b_16(weights=None, image_size=image_size)
        self.vit.heads = nn.Identity()
        self.side = image_size // 16

    def forward(self, images: Tensor) -> Tensor:
        """Return patch features without the class token: (B, 3, H, W) -> (B, 768, H/16, W/16)."""
        patches = self.vit._process_input(images)  # (B, S, 768)
        first = self.vit.class_token.expand(len(patches), -1, -1)  # (B, 1, 768)
        encoded = self.vit.encoder(torch.cat([first, patches], 1))[:, 1:]  # (B, S, 768)
        return encoded.transpose(1, 2).unflatten(2, (self.side, self.side))


class _CvTGrid(nn.Module):
    """transformers' CvT-21, giving its last grid without the class token; FedTAR's
    encoder."""

    def __init__(self) -> None:
        super().__init__()
        with LOADING:
            from transformers import CvtConfig, CvtModel

            self.cvt: Any = CvtModel(CvtConfig(**CVT_21), add_pooling_layer=False)
        self.width = int(self.cvt.config.embed_dim[-1])

    def forward(self, images: Tensor) -> Tensor:
        """Return patch features: (B, 3, H, W) -> (B, width, H/16, W/16)."""
        grid: Tensor = self.cvt(images).last_hidden_state
        return grid


def _trunk(settings: EncoderSettings, file: Path | None) -> tuple[nn.Module, int]:
    """Return the network without its classifier, with weights loaded, and its feature width."""
    if settings.name == "small":
        small = SmallResNet()
        if settings.weights == "embedded":
            from medflare.models.embedded import encoder_state

            small.load_state_dict(encoder_state())
        elif settings.weights != "none":
            small.load_state_dict(_read_weights(file, small))
        return small, small.width
    if settings.weights == "embedded":
        raise ConfigError(
            f"encoder.weights is 'embedded', but only the encoder 'small' ships with weights. For "
            f"'{settings.name}' set 'site', with a file of ImageNet weights as encoder_weights in site.yaml; "
            "or 'none' to start from random values."
        )
    if settings.name == "vit_b_16":
        vit = _ViTGrid(settings.image_size)
        if settings.weights != "none":
            vit.vit.load_state_dict(_read_weights(file, vit.vit))
        return vit, 768
    if settings.name == "cvt_21":
        cvt = _CvTGrid()
        if settings.weights != "none":
            cvt.cvt.load_state_dict(_read_weights(file, cvt.cvt))
        return cvt, cvt.width
    import torchvision.models

    resnet = getattr(torchvision.models, settings.name)(weights=None)
    width = resnet.fc.in_features
    if settings.weights != "none":
        resnet.load_state_dict(_read_weights(file, resnet), strict=False)
    return nn.Sequential(*list(resnet.children())[:-2]), width


def _read_weights(file: Path | None, network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a site's weight file, checked to fit `network` except its classifier.

    Raises:
        DataError: the file is missing or lacks tensors; the text stays at the site.
    """
    if file is not None and file.is_dir():
        file = next((file / name for name in IN_FOLDER if (file / name).is_file()), file)
    if file is None or not file.is_file():
        raise DataError(
            f"site.yaml: the job takes the encoder's weights from 'encoder_weights', which is {file}. Name a "
            "local .pth or .safetensors file of torchvision weights there, or of 'cvt_21' the folder that "
            "transformers wrote."
        )
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(file)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
    state = {n.removeprefix("cvt."): value for n, value in state.items() if not n.startswith(CLASSIFIERS)}
    wanted = {name for name in network.state_dict() if not name.startswith(CLASSIFIERS)}
    missing = sorted(wanted - set(state) - {n for n in wanted if n.endswith("num_batches_tracked")})
    if missing:
        raise DataError(f"{file}: lacks {len(missing)} tensors of the encoder, for instance '{missing[0]}'.")
    return state
