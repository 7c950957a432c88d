# SPDX-License-Identifier: Apache-2.0
"""Truncation of prompts that are longer than the room they have."""

from __future__ import annotations

from collections.abc import Sequence


def keep_end(prompt: Sequence[int], room: int, begin: Sequence[int]) -> tuple[int, ...]:
    """Return at most `room` ids of a prompt: its end, where the instruction stands, after the begin mark."""
    if len(prompt) <= room:
        return tuple(prompt)
    kept = room - len(begin)
    return (*begin, *prompt[len(prompt) - kept :]) if kept > 0 else tuple(prompt[len(prompt) - room :])
