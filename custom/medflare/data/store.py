# SPDX-License-Identifier: Apache-2.0
"""Decoded images of a cohort: each file is decoded once, kept as 8-bit rows in one memory-mapped file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medflare.core.errors import DataError
from medflare.core.task_progress import report_progress
from medflare.data.chest_radiograph import chest_radiograph_warnings
from medflare.data.images import DecodeError, fit_square, read_image, scan, warm_up
from medflare.data.records import Skipped
from medflare.data.settings.cohort import ScannerConfig
from medflare.data.volumes import read_slice

LAYOUT = 1
"""Raise when decoding changes, so that old caches are not reused."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageSample:
    """One image of one study; `cut` is (index, count, window) of a slice of a volume (volumes.read_slice)."""

    record: str
    path: Path
    scanner: ScannerConfig | None = None
    cut: tuple[int, int, tuple[float, float] | None] | None = None


def one_image(path: Path, size: int) -> tuple[Tensor, list[str]]:
    """Return a single chest radiograph as a learner would see it, and what its header leaves in doubt.

    Returns:
        ((1, 1, size, size) in [0, 1], warnings for the reader of a draft).

    Raises:
        DataError: the image cannot be used, or is no radiograph of a chest.
    """
    try:
        warnings = chest_radiograph_warnings(path)
        image = read_image(path, at_least=2 * size)
    except DecodeError as error:
        raise DataError(f"{error} ({error.reason}). Expected PNG, JPEG, TIFF, DICOM or NIfTI.") from None
    return _row(image, size, None)[None, None].to(torch.float32).div_(255), warnings


def _row(image: np.ndarray, size: int, scanner: ScannerConfig | None) -> Tensor:
    return (scan(fit_square(image, size), scanner) * 255).round().to(torch.uint8)


class ImageStore:
    """Images of `samples` as (n, size, size) uint8, in RAM or memory-mapped under `cache`.

    8 bits are enough: images deeper than that are windowed before (images.read_image). A cache is named
    after the paths, sizes and modification times of all files, so an unchanged cohort is never decoded
    again and a changed one is never served stale.

    Attributes:
        failed: what could not be decoded, and why; `kept` holds the indices into `samples` of the others.
        decoded: how many files this object decoded itself (0 when the cache served); `seconds`: how long.
    """

    def __init__(
        self, samples: Sequence[ImageSample], size: int, cache: Path | None = None, workers: int | None = None
    ) -> None:
        self.samples = list(samples)
        self.size = size
        self.decoded = 0
        self.seconds = 0.0
        self.failed: list[Skipped] = []
        self._failures: dict[int, tuple[str, str]] = {}
        file = None if cache is None or not self.samples else Path(cache) / f"images-{self._key()}.npy"
        if file is None or not self._open(file):
            self._decode(file, workers or min(8, os.cpu_count() or 1))
        for index, (reason, detail) in sorted(self._failures.items()):
            self.failed.append(Skipped(record=self.samples[index].record, reason=reason, detail=detail))
        self.kept = [index for index in range(len(self.samples)) if index not in self._failures]
        self._rows = np.array(self.kept, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.kept)

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return images `indices` (positions in `kept`) as float32 (B, 1, size, size) in [0, 1]."""
        rows = self._rows[np.asarray(indices, dtype=np.int64)]
        picked = torch.from_numpy(np.ascontiguousarray(self._pixels[rows]))
        return picked.unsqueeze(1).to(torch.float32).div_(255)

    def _key(self) -> str:
        digest = hashlib.sha256(f"{LAYOUT} {self.size}".encode())
        for sample in self.samples:
            try:
                stat = sample.path.stat()
                state = f"{stat.st_size} {stat.st_mtime_ns}"
            except OSError:
                state = "missing"
            scanner = sample.scanner.model_dump_json() if sample.scanner else ""
            cut = f"\t{sample.cut}" if sample.cut is not None else ""
            digest.update(f"\n{sample.path}\t{state}\t{scanner}{cut}".encode())
        return digest.hexdigest()[:20]

    def _open(self, file: Path) -> bool:
        """Map a finished cache; return False where there is none or it is damaged."""
        notes = file.with_suffix(".json")
        try:
            failures = json.loads(notes.read_text(encoding="utf-8"))["failures"]
            pixels = np.load(file, mmap_mode="r")
        except (OSError, ValueError, KeyError):
            return False
        if pixels.shape != (len(self.samples), self.size, self.size):
            return False
        self._pixels = pixels
        self._failures = {int(index): (reason, detail) for index, (reason, detail) in failures.items()}
        return True

    def _decode(self, file: Path | None, workers: int) -> None:
        shape = (len(self.samples), self.size, self.size)
        warm_up(sample.path for sample in self.samples)
        started = time.monotonic()
        scratch = None
        if file is None:
            self._pixels = np.zeros(shape, dtype=np.uint8)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(f".{os.getpid()}.tmp")
            self._pixels = np.lib.format.open_memmap(scratch, mode="w+", dtype=np.uint8, shape=shape)
        with ThreadPoolExecutor(workers) as pool:
            for index, failure in enumerate(pool.map(self._fill, range(len(self.samples)))):
                report_progress("images read", index + 1, len(self.samples))
                if failure is not None:
                    self._failures[index] = failure
        self.decoded, self.seconds = len(self.samples), time.monotonic() - started
        rate = self.decoded / max(self.seconds, 1e-9)
        log.info("decoded %d images in %.1f s (%.0f per second)", self.decoded, self.seconds, rate)
        if file is not None and scratch is not None:
            self._publish(file, scratch)

    def _fill(self, index: int) -> tuple[str, str] | None:
        """Decode one image into its row; return the reason where it cannot be used."""
        sample = self.samples[index]
        try:
            if sample.cut is None:
                image = read_image(sample.path, at_least=2 * self.size)
            else:
                image = read_slice(sample.path, *sample.cut)
        except DecodeError as error:
            return error.reason, str(error)
        self._pixels[index] = _row(image, self.size, sample.scanner).numpy()
        return None

    def _publish(self, file: Path, scratch: Path) -> None:
        """Move a finished cache into place; the notes last, because `_open` needs both."""
        if isinstance(self._pixels, np.memmap):
            self._pixels.flush()
        os.replace(scratch, file)
        notes = scratch.with_suffix(".notes")
        notes.write_text(json.dumps({"failures": self._failures}), encoding="utf-8")
        os.replace(notes, file.with_suffix(".json"))
        self._pixels = np.load(file, mmap_mode="r")
