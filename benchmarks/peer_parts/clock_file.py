# SPDX-License-Identifier: Apache-2.0
"""The file into which the first site writes when it begins to train, in both systems."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "MEDFLARE_PEERS_CLOCK"
"""Environment variable that names the file."""
FIRST_SITE = "site-1"


def note_time(site: str) -> None:
    """Append the time, of the first site alone."""
    if site == FIRST_SITE:
        with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(f"{time.time()}\n")
