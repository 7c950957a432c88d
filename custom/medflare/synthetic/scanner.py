# SPDX-License-Identifier: Apache-2.0
"""Simulation of a hospital's X-ray machine: blur, exposure, noise, collimation and the side marker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from medflare.synthetic.anatomy import Plane, grid, smooth_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanner:
    """Character of one machine; lengths are in pixels of a 128-pixel image and scale with the size."""

    blur: float = 0.4  # Gaussian sigma
    contrast: float = 1.0
    brightness: float = 0.0
    gamma: float = 1.0
    noise: float = 0.012  # standard deviation of quantum noise at mid density
    vignette: float = 0.0  # darkening in the corners, 0..1
    marker: str = "R"  # side letter, "" for none
    collimation: float = 0.0  # width of the dark border as a fraction of the image
    bits: int = 8  # bit depth of the PNG files this machine exports, 8 or 16

    def __post_init__(self) -> None:
        if self.marker not in ("", "L", "R"):
            raise ValueError(f"scanner marker is {self.marker!r}; choose '', 'L' or 'R'")
        if self.bits not in (8, 16):
            raise ValueError(f"scanner bits is {self.bits!r}; choose 8 or 16")


def acquire(film: Plane, scanner: Scanner, rng: np.random.Generator) -> Plane:
    """Turn film density (size, size) in [0, 1] into this machine's image, same shape and range.

    `rng` positions the patient (shift, tilt, zoom) and draws the noise of this one exposure.
    """
    size = film.shape[0]
    image = _position(film, rng)
    if scanner.blur > 0:
        image = ndimage.gaussian_filter(image, scanner.blur * size / 128, truncate=3.0)
    image = (image - np.float32(0.5)) * np.float32(scanner.contrast) + np.float32(0.5 + scanner.brightness)
    image += np.float32(rng.normal(0, 0.012))
    image = np.clip(image, 0.0, 1.0) ** np.float32(scanner.gamma)
    grain = rng.standard_normal(image.shape, dtype=np.float32)
    image += grain * (np.float32(scanner.noise) * (np.float32(1.25) - np.float32(0.5) * image))
    image += smooth_noise(rng, size, 9) * np.float32(0.5 * scanner.noise)
    image *= _frame(size, scanner.vignette, scanner.collimation)
    if scanner.marker:
        letter = _marker(size, scanner.marker)
        image += (np.float32(0.97) - image) * letter
    return np.clip(image, 0, 1, dtype=np.float32)


def _position(film: Plane, rng: np.random.Generator) -> Plane:
    """Tilt, zoom and shift the patient slightly in front of the detector (bilinear)."""
    size = film.shape[0]
    tilt, zoom = rng.normal(0, 0.018), 1 / rng.uniform(0.96, 1.05)
    shift = rng.normal(0, 0.012, 2) * size
    turn = zoom * np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
    centre = np.full(2, (size - 1) / 2)
    return ndimage.affine_transform(film, turn, centre - turn @ centre + shift, order=1, mode="nearest")


@lru_cache(maxsize=64)
def _frame(size: int, vignette: float, collimation: float) -> Plane:
    x, y = grid(size)
    shade = 1 - np.float32(0.5 * vignette) * np.clip(x * x + y * y, 0, 2) ** 2 / 2
    if collimation > 0:
        limit = 1 - 2 * collimation
        shade = shade * np.where((np.abs(x) < limit) & (np.abs(y) < limit + collimation), 1.0, 0.06)
    return shade.astype(np.float32)


_STROKES: dict[str, list[tuple[float, float]]] = {
    "R": [(0, 1), (0, 0), (0.75, 0), (0.9, 0.25), (0.75, 0.5), (0, 0.5), (0.45, 0.5), (0.95, 1)],
    "L": [(0, 0), (0, 1), (0.85, 1)],
}


@lru_cache(maxsize=64)
def _marker(size: int, letter: str) -> Plane:
    """Return the lead letter beside the shoulder of its side, drawn with lines so that no font is needed."""
    scale = 4
    image = Image.new("L", (scale * size, scale * size))
    pen = ImageDraw.Draw(image)
    left = 0.115 if letter == "R" else 0.83
    side = scale * size
    points = [((left + 0.055 * u) * side, (0.10 + 0.075 * v) * side) for u, v in _STROKES[letter]]
    pen.line(points, fill=235, width=max(2, round(0.014 * scale * size)), joint="curve")
    small = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / np.float32(255)
