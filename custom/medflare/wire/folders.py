# SPDX-License-Identifier: Apache-2.0
"""Folders, and what is in them, forced to the disk. No torch: FLARE's long-lived processes use it."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have the operating system write a file or a folder to the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Have the operating system write a folder with everything in it to the disk."""
    for inner, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(inner, name))
        sync(Path(inner))


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, which are still there after a power cut.

    A file that is forced to the disk in a folder that is not may be lost with it.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
