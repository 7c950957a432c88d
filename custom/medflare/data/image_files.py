# SPDX-License-Identifier: Apache-2.0
"""Image files: found by their names and, of DICOM, by their mark."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
VOLUMES = (".nii", ".nii.gz")
DICOM = (".dcm", ".dicom")
"""Endings of DICOM files that have one."""


def has_dicom_mark(path: Path) -> bool:
    """Return whether a file has DICOM's mark behind the preamble; False where it cannot be read."""
    with suppress(OSError), path.open("rb") as content:
        content.seek(128)
        return content.read(4) == b"DICM"
    return False


def may_be_dicom(path: Path) -> bool:
    """Return whether a file's name or mark says DICOM. DICOMDIR lists others and holds nothing itself."""
    if path.name.upper() == "DICOMDIR":
        return False
    return path.suffix.lower() in DICOM or has_dicom_mark(path)


def image_files(folder: Path) -> list[Path]:
    """Return the files in and below a folder that may be images, sorted; those of a PACS have no ending."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name[0] != "."
        and (path.name.lower().endswith((*PICTURES, *VOLUMES)) or may_be_dicom(path))
    )
