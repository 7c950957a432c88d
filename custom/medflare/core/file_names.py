# SPDX-License-Identifier: Apache-2.0
"""Names of files: without their endings, and paths that FLARE would split."""

from __future__ import annotations

import re
from pathlib import Path

_SPLIT = re.compile(r"[\s'\"\\]")


def is_split_by_flare(path: Path) -> bool:
    """Return whether a path has a space, a quote or a backslash, which FLARE's commands do not protect."""
    return _SPLIT.search(str(path)) is not None


def without_ending(name: str) -> str:
    """Return a file's name without its ending; the last number of a DICOM UID is none, `.nii.gz` is one."""
    name = name.removesuffix(".gz")
    head, _, ending = name.rpartition(".")
    return head if head and not ending.isdigit() else name
