# SPDX-License-Identifier: Apache-2.0
"""Lines that libraries write and that tell a person nothing."""

from __future__ import annotations

import logging


def quiet_bitsandbytes() -> None:
    """Leave out the lines of bitsandbytes for every product whose inputs it casts and kernel it lacks."""
    for place in ("backends.cpu.ops", "autograd._functions"):
        logging.getLogger(f"bitsandbytes.{place}").setLevel(logging.ERROR)
