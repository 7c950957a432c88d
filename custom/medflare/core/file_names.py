# SPDX-License-Identifier: Apache-2.0
"""Names of files: without their endings, made of ids, and paths that FLARE would split."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SPLIT = re.compile(r"[\s'\"\\]")
_UNFIT = re.compile(r"[^\w.-]+")
LONGEST = 100
"""Characters of a name that an id gives; file systems take 255 bytes."""


def is_split_by_flare(path: Path) -> bool:
    """Return whether a path has a space, a quote or a backslash, which FLARE's commands do not protect."""
    return _SPLIT.search(str(path)) is not None


def without_ending(name: str) -> str:
    """Return a file's name without its ending; the last number of a DICOM UID is none, `.nii.gz` is one."""
    name = name.removesuffix(".gz")
    head, _, ending = name.rpartition(".")
    return head if head and not ending.isdigit() else name


def names_for_ids(ids: Iterable[str]) -> list[str]:
    """Return a file name for each id, distinct also where capitals do not count, and inside any folder.

    An id of letters, digits, dots, dashes and underscores is its own name; what else it has becomes "_".
    """
    names, taken = [], set[str]()
    for text in ids:
        name = stem = _UNFIT.sub("_", text).strip(".")[:LONGEST] or "_"
        number = 1
        while name.casefold() in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.casefold())
        names.append(name)
    return names
