# SPDX-License-Identifier: Apache-2.0
"""Radiographs as small embedded pictures."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medflare.evaluation.predictions import Prediction

LONGEST_SIDE = 400
QUALITY = 82
PLAIN = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture, or why there is none.

    Attributes:
        data: JPEG in base64; "" if there is none.
        description: for a screen reader.
        reason: why there is none.
    """

    data: str = ""
    description: str = ""
    reason: str = ""


def picture_of(item: Prediction, folder: Path) -> Picture:
    """Return the study's first image.

    Args:
        item: the study.
        folder: of its predictions file, which `item.image` is relative to.
    """
    from medflare.data.images import DecodeError, read_image

    if item.image is None:
        return Picture(reason="no image recorded")
    path = folder / item.image
    try:
        pixels = _plain_image(path)
        if pixels is None:
            pixels = read_image(path, at_least=LONGEST_SIDE)
    except (DecodeError, OSError) as error:
        return Picture(reason=f"image not shown: {_reason(error)}")
    return Picture(data=encode(pixels), description=f"Chest radiograph of study {item.study_id}")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "missing image"
    return str(getattr(error, "reason", "corrupt image"))


def _plain_image(path: Path) -> np.ndarray | None:
    """Return an 8-bit PNG or JPEG as (H, W) in [0, 1]; None for all else.

    Read without MONAI, whose import takes longer than the page.
    """
    from PIL import Image, ImageOps

    if path.suffix.lower() not in PLAIN:
        return None
    with Image.open(path) as image:
        if image.mode not in ("L", "RGB"):
            return None
        return np.asarray(ImageOps.exif_transpose(image).convert("L"), dtype=np.float32) / 255


def encode(pixels: np.ndarray) -> str:
    """Return (H, W) in [0, 1] as a small greyscale JPEG in base64."""
    from PIL import Image

    image = Image.fromarray((np.clip(pixels, 0, 1) * 255).astype(np.uint8), mode="L")
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(out.getvalue()).decode("ascii")
