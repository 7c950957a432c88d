# SPDX-License-Identifier: Apache-2.0
"""Names of files: without their endings, made of ids, and paths that FLARE would split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

_SPLIT = re.compile(r"[\s'\"\\]")
_UNFIT = re.compile(r"[^\w.-]+")
LONGEST = 50
"""Characters of a name that an id gives; file systems take 255 bytes, a letter is up to four."""


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
    names, taken, numbers = [], set[str](), Counter[str]()
    for text in ids:
        name = stem = _UNFIT.sub("_", text).strip(".")[:LONGEST] or "_"
        while name.casefold() in taken:
            numbers[stem.casefold()] += 1
            name = f"{stem}-{numbers[stem.casefold()] + 1}"
        taken.add(name.casefold())
        names.append(name)
    return names
