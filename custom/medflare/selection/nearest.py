# SPDX-License-Identifier: Apache-2.0
"""The nearest concept of a name that no vocabulary has (algorithms.md 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from medflare.selection.vocabulary import Vocabulary

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts -> (N, width): any local model; rows need not be of unit norm."""


class NearestConcept:
    """Maps a name that no concept has to the concept with the nearest name, by cosine.

    Args:
        least: cosine below which a name stays without a concept.
    """

    def __init__(self, vocabulary: Vocabulary, embed: Embed, least: float = 0.8) -> None:
        self.vocabulary, self.embed, self.least = vocabulary, embed, least
        self._ids = list(vocabulary.concepts)
        self._rows = _unit(embed([vocabulary.concepts[key].names[0] for key in self._ids]))

    def lookup(self, name: str) -> tuple[str, float] | None:
        """(concept, confidence): 1 for an exact name, else the cosine; None where none is near enough."""
        exact = self.vocabulary.lookup(name)
        if exact is not None:
            return exact, 1.0
        near = self._rows @ _unit(self.embed([name]))[0]
        best = int(near.argmax())
        return (self._ids[best], float(min(near[best], 1.0))) if near[best] >= self.least else None


def _unit(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    found: np.ndarray = rows / np.maximum(norms, 1e-12)
    return found
