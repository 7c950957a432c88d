# SPDX-License-Identifier: Apache-2.0
"""Tables of the lexicon from texts that a person can read and extend."""

from __future__ import annotations


def rows(text: str) -> tuple[str, ...]:
    """Entries between commas."""
    return tuple(" ".join(item.split()) for item in text.split(",") if item.strip())


def lines(text: str) -> tuple[str, ...]:
    """One entry a line; a line that begins with "+" continues the one before."""
    joined = " ".join(f"\n{line.strip()}" for line in text.strip().splitlines()).replace("\n+", "")
    return tuple(" ".join(line.split()) for line in joined.strip().splitlines())
