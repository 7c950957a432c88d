# SPDX-License-Identifier: Apache-2.0
"""CT volumes as evenly spaced axial slices, read through MONAI.

A volume is a NIfTI file or a folder with the DICOM files of one series. Slices run from the patient's feet to
the head and are turned as a radiological viewer shows them: the patient's right on the left, anterior on top.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path

import numpy as np

from medflare.data.image_files import VOLUMES
from medflare.data.images import DecodeError, check_finite, decoding, percentile_window, windowed


def is_volume(path: Path) -> bool:
    """Return whether a path is read as a volume: NIfTI, or a folder."""
    return path.name.lower().endswith(VOLUMES) or path.is_dir()


def slice_positions(depth: int, count: int) -> list[int]:
    """Return the middles of `count` equal parts of 0..depth-1, from below; ValueError where depth < count."""
    if not 1 <= count <= depth:
        raise ValueError(f"{count} slices of a volume of {depth}; expected 1 to {depth}")
    return [int((part + 0.5) * depth / count) for part in range(count)]


def read_slices(path: Path, count: int, window: tuple[float, float] | None = None) -> np.ndarray:
    """Return axial slices (count, H, W), float32 in [0, 1], rows from anterior, columns from the right.

    Args:
        window: centre and width in the volume's values (Hounsfield units of a CT); None takes the percentiles
            images.WINDOW of the whole volume.

    Raises:
        DecodeError: with reason `missing image`, `corrupt image`, `NaN pixels`, `constant image` or
            `too few slices`.
    """
    if not path.exists():
        raise DecodeError("missing image", f"{path}: no such file or folder")
    with decoding(path):
        volume = _axial(path)
    if volume.shape[2] < count:
        raise DecodeError(
            "too few slices", f"{path}: has {volume.shape[2]} axial slices, 'visits: slices' asks for {count}"
        )
    chosen = volume[:, :, slice_positions(volume.shape[2], count)].transpose(2, 1, 0).astype(np.float32)
    check_finite(chosen, path)
    if window is None:
        low, high = percentile_window(volume, 128)
    else:
        low, high = window[0] - window[1] / 2, window[0] + window[1] / 2
    scaled = windowed(chosen, low, high)  # (count, H, W)
    if scaled.max() - scaled.min() < 1e-6:
        raise DecodeError("constant image", f"{path}: all values are the same in this window")
    return scaled


def _axial(path: Path) -> np.ndarray:
    """Return (x, y, z), x towards the patient's left, y to the back, z to the head.

    A file without orientation, or with the identity that conversion scripts write, is taken as it is.
    """
    from monai.data.image_reader import NibabelReader, PydicomReader
    from monai.transforms import LoadImage, Orientation

    reader = PydicomReader() if path.is_dir() else NibabelReader()
    loaded = LoadImage(reader=reader, image_only=True, ensure_channel_first=True)(path)
    if loaded.ndim != 4 or loaded.shape[0] != 1:
        shape = tuple(loaded.shape[1:])
        raise DecodeError("not a volume", f"{path}: holds {shape}, expected one grey volume of three axes")
    if not np.allclose(np.asarray(loaded.affine)[:3, :3], np.eye(3)):
        loaded = Orientation(axcodes="LPS", labels=None)(loaded)
    return np.asarray(loaded)[0]


_LOCK = threading.Lock()


def read_slice(path: Path, index: int, count: int, window: tuple[float, float] | None = None) -> np.ndarray:
    """Return slice `index` of `read_slices`; the last volume is kept, so its slices cost one decoding."""
    with _LOCK:
        slices = _kept(path, count, window)
    if isinstance(slices, DecodeError):
        raise DecodeError(slices.reason, str(slices))
    return slices[index]


@lru_cache(maxsize=2)
def _kept(path: Path, count: int, window: tuple[float, float] | None) -> np.ndarray | DecodeError:
    try:
        return read_slices(path, count, window)
    except DecodeError as error:
        return error
