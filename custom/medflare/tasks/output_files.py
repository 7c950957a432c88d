# SPDX-License-Identifier: Apache-2.0
"""Names of the files that a command writes, one for each file it was given, and what they may replace."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from medflare.core.errors import DataError
from medflare.core.file_names import without_ending


def distinct_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a distinct name for each file: its own without the ending, else with its folders from the one
    that all have in common, else with both."""
    files = list(dict.fromkeys(paths))
    alone = {path: without_ending(path.name) for path in files}
    if len(set(alone.values())) == len(files):
        return alone
    shared = Path(os.path.commonpath([path.resolve().parent for path in files]))
    inside = {path: path.resolve().relative_to(shared) for path in files}
    placed = {path: place.with_name(alone[path]).as_posix() for path, place in inside.items()}
    if len(set(placed.values())) == len(files):
        return placed
    return {path: place.as_posix() for path, place in inside.items()}


def refuse_to_replace(folder: Path, names: Iterable[str], content: str) -> None:
    """Refuse to overwrite files of `folder`; an empty one is no loss.

    Args:
        names: of the files, from the folder.
        content: what a person may have put there, for the error.

    Raises:
        DataError: there are such files.
    """
    taken = [name for name in names if (folder / name).is_file() and (folder / name).stat().st_size]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise DataError(
            f"{folder}: has {taken[0]}{more} already, perhaps {content}. Name another folder with --out, or "
            "say --overwrite."
        )
