# SPDX-License-Identifier: Apache-2.0
"""Garbage collection that leaves out what is there already, for libraries that collect again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """Collect only what is made inside.

    transformers' Trainer collects in every round, PyKEEN after every epoch, among all that was ever imported.
    Afterwards everything is collected as before: of objects that stay frozen nanobind says, when the program
    ends, that they leaked.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
