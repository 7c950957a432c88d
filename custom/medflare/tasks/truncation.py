# SPDX-License-Identifier: Apache-2.0
"""Prompts that are longer than the room they have."""

from __future__ import annotations

from collections.abc import Sequence


def last_of(prompt: Sequence[int], room: int, begin: Sequence[int]) -> tuple[int, ...]:
    """At most `room` ids of a prompt: its end, after the begin mark; what it asks stands there."""
    if len(prompt) <= room:
        return tuple(prompt)
    kept = room - len(begin)
    return (*begin, *prompt[len(prompt) - kept :]) if kept > 0 else tuple(prompt[len(prompt) - room :])
