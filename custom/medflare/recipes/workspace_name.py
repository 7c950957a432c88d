# SPDX-License-Identifier: Apache-2.0
"""The name of a new run's workspace; apart from all else, so that a terminal has its first line at once."""

from __future__ import annotations

import itertools
import time
from pathlib import Path


def new_workspace(title: str, base: Path = Path("runs")) -> Path:
    """Return `runs/<timestamp>-<title>` below the current folder, which does not exist yet."""
    first = (base / f"{time.strftime('%Y%m%d-%H%M%S')}-{title}").resolve()
    more = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], more) if not folder.exists())
