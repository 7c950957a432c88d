# SPDX-License-Identifier: Apache-2.0
"""Names of files without their endings."""

from __future__ import annotations


def without_ending(name: str) -> str:
    """Return a file's name without its ending; the last number of a DICOM UID is none, `.nii.gz` is one."""
    name = name.removesuffix(".gz")
    head, _, ending = name.rpartition(".")
    return head if head and not ending.isdigit() else name
