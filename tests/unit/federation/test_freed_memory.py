# SPDX-License-Identifier: Apache-2.0
"""Memory that a task freed goes back to the system."""

from __future__ import annotations

import psutil
import pytest

from medflare.wire.memory import release_free_memory

BLOCK, BLOCKS = 100_000, 2_000
"""Blocks are small enough for the C library's own heap, which it does not shrink below one that is held."""


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(not psutil.LINUX, reason="malloc_trim is GNU's")
def test_what_was_freed_below_a_block_that_is_held_goes_back() -> None:
    blocks = [bytes([1]) * BLOCK for _ in range(BLOCKS)]
    last = blocks[-1]
    blocks.clear()
    before = resident()
    release_free_memory()
    assert before - resident() > BLOCK * BLOCKS / 2
    assert len(last) == BLOCK
