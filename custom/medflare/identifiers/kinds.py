# SPDX-License-Identifier: Apache-2.0
"""Identifiers and the kinds that are looked for, after the HIPAA safe-harbour list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Kind = Literal[
    "name", "date", "record_number", "phone", "email", "address", "institution", "age_over_89", "web_address"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A place of a text that tells who somebody is; offsets are code points, end-exclusive.

    The text itself is never part of it, so that lists of identifiers can be logged.
    """

    start: int
    end: int
    kind: Kind


class Detector(Protocol):
    """Finds identifiers in a text."""

    def find(self, text: str) -> list[Identifier]:
        """Return the identifiers of a text in its order, none overlapping another."""
        ...


def identifier_warning(text: str, detector: Detector) -> str | None:
    """Return a sentence on what a generated text holds that looks like an identifier, None without any.

    A model may have learnt it by heart. The sentence has kinds and offsets, not the words.
    """
    found = detector.find(text)
    if not found:
        return None
    listed = ", ".join(f"{item.kind.replace('_', ' ')} at {item.start}:{item.end}" for item in found)
    return f"holds what looks like an identifier ({listed}): do not pass it on unread"


def without_overlaps(candidates: Iterable[Identifier]) -> list[Identifier]:
    """Return the candidates in order; where two overlap, the longer one, and of equals the first kind."""
    kept: list[Identifier] = []
    for item in sorted(
        candidates, key=lambda each: (each.start - each.end, each.start, KINDS.index(each.kind))
    ):
        if all(item.end <= other.start or item.start >= other.end for other in kept):
            kept.append(item)
    return sorted(kept)
