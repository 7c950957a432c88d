# SPDX-License-Identifier: Apache-2.0
"""New weights from a seed, whatever else draws numbers in the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch

GENERATOR = threading.RLock()
"""Whoever makes weights from a seed, or trains with Trainer, holds it: torch's generators are the process's,
and sites may be threads of one."""


@contextlib.contextmanager
def seeded(seed: int, devices: Sequence[torch.device] | None = None) -> Iterator[None]:
    """torch's numbers from `seed` on; afterwards its generators are as before.

    devices: CUDA devices that count beside the processor; None for all of them.
    """
    with GENERATOR, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
