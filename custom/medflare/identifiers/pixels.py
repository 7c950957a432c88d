# SPDX-License-Identifier: Apache-2.0
"""Text that is burned into a picture: rows of glyph-like spots, brighter or darker than their surroundings.

A marker of one or two letters (R, L, AP) is on every radiograph and is not reported. This is a heuristic:
it warns a person who then looks, and a picture without a warning may still hold a name.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

GLYPHS = 5
"""Glyphs in one row from which a row of spots counts as text."""
SMALLEST_SIDE = 128
"""Pixels; in a smaller picture letters and noise look alike."""
SMALLEST, LARGEST = 0.008, 0.08
"""Height of a glyph as a share of the picture's height."""
STROKE, CONTRAST = 0.04, 0.25
"""Widest stroke as a share of the picture's height, and by how much it differs from what is around it."""
LONGEST_SIDE = 1024
"""Pixels to which a larger picture is reduced; letters of a hospital's labels are still legible."""


def burned_in_text(image: np.ndarray) -> bool:
    """Return whether a picture seems to hold a line of text.

    Args:
        image: (H, W) in [0, 1].
    """
    if min(image.shape) < SMALLEST_SIDE:
        return False
    return any(0 < mask.mean() < 0.3 and _has_row(mask) for mask in _masks(_reduced(image)))


def _reduced(image: np.ndarray) -> np.ndarray:
    """Return a picture of at most LONGEST_SIDE pixels by means of square blocks."""
    block = -(-max(image.shape) // LONGEST_SIDE)
    if block == 1:
        return image
    rows, columns = (side // block for side in image.shape)
    cut = image[: rows * block, : columns * block]
    return np.asarray(cut.reshape(rows, block, columns, block).mean(axis=(1, 3)))


def _masks(image: np.ndarray) -> Iterator[np.ndarray]:
    """Yield where something may be a stroke: extreme grey values, and thin bright or dark structures.

    Small letters are grey at their edges, and labels lie on grey: opening and closing take structures away
    that are thinner than STROKE, and what is left of the difference are those alone.
    """
    from scipy import ndimage

    yield image >= 0.97
    yield image <= 0.03
    size = max(5, round(STROKE * image.shape[0]))
    yield image - ndimage.grey_opening(image, size=(size, size)) > CONTRAST
    yield ndimage.grey_closing(image, size=(size, size)) - image > CONTRAST


def _has_row(mask: np.ndarray) -> bool:
    from scipy import ndimage

    labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
    height = mask.shape[0]
    glyphs = []
    for rows, columns in (box for box in ndimage.find_objects(labels) if box is not None):
        tall, wide = rows.stop - rows.start, columns.stop - columns.start
        filled = mask[rows, columns].mean()
        if SMALLEST * height <= tall <= LARGEST * height and wide <= 2 * tall and 0.15 < filled < 0.98:
            glyphs.append((rows.start, rows.stop, columns.start, columns.stop))
    return any(_row_length(glyph, glyphs) >= GLYPHS for glyph in glyphs)


def _row_length(first: tuple[int, int, int, int], glyphs: list[tuple[int, int, int, int]]) -> int:
    """Return how many glyphs of like height follow each other from `first` on, without a wide gap."""
    tall, count, right = first[1] - first[0], 1, first[3]
    aligned = sorted(
        (g for g in glyphs if abs(g[1] - first[1]) <= 0.35 * tall and 0.5 <= (g[1] - g[0]) / tall <= 2),
        key=lambda g: g[2],
    )
    for glyph in aligned:
        if right <= glyph[2] <= right + 2.5 * tall:
            count, right = count + 1, glyph[3]
    return count
