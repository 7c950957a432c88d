# SPDX-License-Identifier: Apache-2.0
"""Radiographs from files to grey images: PNG, JPEG and TIFF through Pillow, DICOM and NIfTI through MONAI.

What is kept is what a viewer shows: row 0 on top, column 0 on the left, and air dark. Left and right are
never exchanged, neither here nor in `augment`, because reports name sides.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.records import RecordError
from medflare.data.settings.cohort import ScannerConfig

WINDOW = (0.5, 99.5)
"""Percentiles that become black and white in images of more than 8 bits."""

warnings.filterwarnings("ignore", message="PydicomReader: ImageOrientationPatient")
logging.getLogger("monai.data.nvimgcodec_pydicom_plugin").setLevel(logging.ERROR)


class DecodeError(RecordError):
    """An image that cannot be used."""


def read_image(path: Path, at_least: int | None = None) -> np.ndarray:
    """Return the image at `path` as (H, W) float32 in [0, 1].

    8-bit values are divided by 255; deeper ones are windowed between the percentiles of WINDOW. Colour
    becomes luminance, DICOM's MONOCHROME1 is inverted, RescaleSlope is applied, EXIF orientation is obeyed.

    Args:
        at_least: a JPEG may be decoded at 1/2, 1/4 or 1/8 as long as its shortest side stays this long.

    Raises:
        DecodeError: with reason `missing image`, `corrupt image`, `NaN pixels`, `constant image` or
            `not a radiograph` (a volume of several slices).
    """
    path = Path(path)
    with decoding(path):
        pixels, inverted = _pixels(path, at_least)
    grey = _grey(pixels, path)
    check_finite(grey, path)
    scaled = _scale(grey, eight_bit=pixels.dtype in (np.uint8, np.bool_))
    if scaled.size == 0 or scaled.max() - scaled.min() < 1e-6:
        raise DecodeError("constant image", f"{path}: all pixels have the same value")
    return 1 - scaled if inverted else scaled


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Raise DecodeError, `missing image` or `corrupt image`, for whatever a decoder raises inside."""
    try:
        yield
    except FileNotFoundError:
        raise DecodeError("missing image", f"{path}: no such file") from None
    except DecodeError:
        raise
    except Exception as error:  # decoders raise anything from OSError to struct.error on a damaged file
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        if type(error).__name__ == "InvalidDicomError":  # by name: pydicom's import takes time
            detail = f"it is no DICOM file, and its name ends in none of {', '.join((*PICTURES, *VOLUMES))}"
        raise DecodeError("corrupt image", f"{path}: cannot be decoded: {detail}") from None


def check_finite(values: np.ndarray, path: Path) -> None:
    """Raise DecodeError, `NaN pixels`, unless all values are finite."""
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise DecodeError("NaN pixels", f"{path}: {count} pixels are not finite")


def _pixels(path: Path, at_least: int | None) -> tuple[np.ndarray, bool]:
    """Return raw values with rows first, and whether bright means dense air (MONOCHROME1)."""
    name = path.name.lower()
    if name.endswith(PICTURES):
        return _picture(path, at_least), False
    if name.endswith(VOLUMES):
        return _nifti(path), False
    return _dicom(path)


def _picture(path: Path, at_least: int | None) -> np.ndarray:
    # Not through MONAI, whose reader of pictures is Pillow and whose import takes seconds.
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        if at_least and image.format == "JPEG" and min(image.size) > at_least:
            ratio = at_least / min(image.size)
            width, height = image.size
            image.draft("L", (math.ceil(width * ratio), math.ceil(height * ratio)))
        deep = image.mode.startswith("I") or image.mode == "F"
        return np.asarray(ImageOps.exif_transpose(image if deep or image.mode == "L" else image.convert("L")))


def warm_up(paths: Iterable[Path]) -> None:
    """Import MONAI once (seconds, and printing nothing) where a file needs it, before threads ask for it."""
    if not all(path.name.lower().endswith(PICTURES) for path in paths):
        import_module("monai.data.image_reader")


@lru_cache(maxsize=1)
def _dicom_reader() -> Any:
    from monai.data.image_reader import PydicomReader

    return PydicomReader(swap_ij=False)


def _dicom(path: Path) -> tuple[np.ndarray, bool]:
    reader = _dicom_reader()
    dataset = reader.read(path)
    try:
        pixels = np.asarray(reader.get_data(dataset)[0])
    except (NotImplementedError, RuntimeError) as error:
        syntax = getattr(getattr(dataset, "file_meta", None), "TransferSyntaxUID", None)
        hint = f"compression {getattr(syntax, 'name', syntax)}; pylibjpeg with its plug-ins may read it"
        raise DecodeError("corrupt image", f"{path}: {hint}: {str(error)[:120]}") from None
    return pixels, str(getattr(dataset, "PhotometricInterpretation", "")).strip() == "MONOCHROME1"


def _nifti(path: Path) -> np.ndarray:
    """Return rows first, as a radiological viewer shows it: columns to the patient's left, rows downwards.

    The affine decides. A file without one (both form codes 0) or with the identity, which conversion
    scripts write as a placeholder, is taken as (column, row) in viewing order.
    """
    from monai.data.image_reader import NibabelReader

    reader = NibabelReader()
    volume, meta = reader.get_data(reader.read(path))
    volume = np.asarray(volume)
    while volume.ndim > 2 and 1 in volume.shape[2:]:
        volume = volume.squeeze(axis=2 + volume.shape[2:].index(1))
    if volume.ndim > 2:
        raise DecodeError("not a radiograph", f"{path}: a volume of shape {volume.shape}, expected one slice")
    affine = np.asarray(meta["original_affine"])[:3, :3]
    named = bool(int(meta.get("sform_code", 0)) or int(meta.get("qform_code", 0)))
    if not named or np.allclose(affine, np.eye(3)):
        return np.asarray(volume.T)
    across = [int(np.argmax(np.abs(affine[:, axis]))) for axis in (0, 1)]
    if across[1] == 0:  # the second axis is the left-right one
        volume, affine, across = volume.T, affine[:, [1, 0, 2]], across[::-1]
    if affine[across[0], 0] > 0:  # RAS: a positive step goes to the patient's right
        volume = volume[::-1]
    if affine[across[1], 1] > 0:  # towards anterior or superior: upwards
        volume = volume[:, ::-1]
    return np.asarray(volume.T)


def _grey(pixels: np.ndarray, path: Path) -> np.ndarray:
    """Return (H, W) float32; three or four channels last become luminance (ITU-R 601)."""
    if pixels.ndim == 3 and pixels.shape[-1] in (3, 4):
        pixels = pixels[..., :3] @ np.array([0.299, 0.587, 0.114])
    pixels = pixels.squeeze()
    if pixels.ndim != 2:
        raise DecodeError("not a radiograph", f"{path}: pixels of shape {pixels.shape}, expected one picture")
    return pixels.astype(np.float32)


def _scale(grey: np.ndarray, eight_bit: bool) -> np.ndarray:
    if eight_bit:
        return grey / (255.0 if grey.max() > 1 else 1.0)
    return windowed(grey, *percentile_window(grey, 512))


def percentile_window(values: np.ndarray, sampled: int) -> tuple[float, float]:
    """Return the values that become black and white: percentiles WINDOW, or minimum and maximum.

    Args:
        values: (H, W) or (H, W, D).
        sampled: rows and columns, at least, from which the percentiles are taken.
    """
    down, across = (max(1, side // sampled) for side in values.shape[:2])
    low, high = np.percentile(values[::down, ::across], WINDOW)
    return (low, high) if high > low else (float(values.min()), float(values.max()))


def windowed(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return float32 values in [0, 1]: 0 up to `low`, 1 from `high` on."""
    return np.clip((values - low) / max(high - low, 1e-12), 0, 1).astype(np.float32)


def fit_square(image: np.ndarray, size: int) -> Tensor:
    """Return (H, W) in [0, 1] as (size, size): longest side to `size`, the rest black on both sides.

    Padding and not cropping, so that nothing a report may speak of (costophrenic angles, apices) is cut.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(image, dtype=np.float32))[None, None]
    height, width = image.shape
    scale = size / max(height, width)
    inner = (max(1, round(height * scale)), max(1, round(width * scale)))
    small = F.interpolate(tensor, size=inner, mode="bilinear", antialias=True, align_corners=False)
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    return F.pad(small, (left, size - inner[1] - left, top, size - inner[0] - top))[0, 0].clamp(0, 1)


def scan(image: Tensor, scanner: ScannerConfig | None) -> Tensor:
    """Return the image (H, W) in [0, 1] as a scanner of this character would give it."""
    if scanner is None:
        return image
    if scanner.blur > 0:
        reach = max(1, math.ceil(3 * scanner.blur))
        taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float32) / scanner.blur) ** 2)
        taps = taps / taps.sum()
        padded = F.pad(image[None, None], (reach,) * 4, mode="replicate")
        image = F.conv2d(F.conv2d(padded, taps.view(1, 1, 1, -1)), taps.view(1, 1, -1, 1))[0, 0]
    mean = image.mean()
    return (((image - mean) * scanner.contrast + mean) * scanner.brightness).clamp(0, 1)


def augment(images: Tensor, out: int, degrees: float, generator: torch.Generator) -> Tensor:
    """Crop and rotate at random in one resampling: (B, 1, S, S) -> (B, 1, out, out); never flip.

    Each image gets its own angle, uniform in +-`degrees`, and its own offset, uniform over all positions at
    which an unrotated crop of `out` pixels lies inside. Corners that rotate in from outside are black.
    """
    batch, _, size, _ = images.shape
    draws = torch.rand(batch, 3, generator=generator)
    angle = (draws[:, 0] * 2 - 1) * math.radians(degrees)
    room = max(0.0, (size - out) / size)
    offset = (draws[:, 1:] * 2 - 1) * room
    scale = min(1.0, out / size)
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = torch.stack([cos, -sin, offset[:, 0], sin, cos, offset[:, 1]], dim=1)  # (B, 6)
    theta = rows.view(batch, 2, 3).to(images)  # (B, 2, 3): rotation, scale and shift
    grid = F.affine_grid(theta, [batch, 1, out, out], align_corners=False)  # (B, out, out, 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def centre(images: Tensor, out: int) -> Tensor:
    """Return the middle `out` pixels for evaluation: (B, 1, S, S) -> (B, 1, out, out), or resize."""
    size = images.shape[-1]
    if size < out:
        return F.interpolate(images, size=(out, out), mode="bilinear", align_corners=False)
    start = (size - out) // 2
    return images[..., start : start + out, start : start + out]
