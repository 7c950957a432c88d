# SPDX-License-Identifier: Apache-2.0
"""New weights from a seed, whatever else draws numbers in the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

GENERATOR = threading.RLock()
"""Whoever seeds torch's generators holds it: they are the process's, and sites may be threads of one."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's numbers from `seed` on; afterwards all generators are as before."""
    with GENERATOR, torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
