# SPDX-License-Identifier: Apache-2.0
"""New weights from a seed, whatever else draws numbers in the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch

GENERATOR = threading.RLock()
"""Held while weights are made from a seed and while Trainer trains: torch's generators belong to the process,
and sites may be threads of one process."""


@contextlib.contextmanager
def seeded(seed: int, devices: Sequence[torch.device] | None = None) -> Iterator[None]:
    """Seed torch's generators inside, and restore them after.

    devices: CUDA devices that count beside the processor; None for all of them.
    """
    with GENERATOR, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
