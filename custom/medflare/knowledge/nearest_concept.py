# SPDX-License-Identifier: Apache-2.0
"""The nearest concept of a name that no vocabulary has.

benchmarks/nearest_concept.py measures how often the nearest one is the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from medflare.knowledge.triples import canonical
from medflare.knowledge.vocabulary import Vocabulary

Embed = Callable[[Sequence[str]], Any]
"""Texts -> (N, width), dense or sparse: any local model; rows need not be of unit norm."""
PIECE = 512
"""Names that are compared with the whole vocabulary at a time."""


class NearestConcept:
    """Maps a name that no concept has to the concept with the nearest name, by cosine.

    Every name of a concept counts, synonyms too. They are embedded when the first unknown name is asked for.

    Args:
        least: cosine below which a name stays without a concept.
    """

    def __init__(self, vocabulary: Vocabulary, embed: Embed, least: float = 0.8) -> None:
        self.vocabulary, self.embed, self.least = vocabulary, embed, least
        pairs = [(key, canonical(name)) for key, c in vocabulary.concepts.items() for name in c.names]
        self._ids, self._names = [key for key, _ in pairs], [name for _, name in pairs]

    @cached_property
    def _rows(self) -> Any:
        """(names, width) of unit norm."""
        return unit(self.embed(self._names))

    def lookup(self, name: str) -> tuple[str, float] | None:
        """Return (concept, confidence): 1 for an exact name, else the cosine; None if none is near."""
        return self.resolve([name])[name]

    def resolve(self, names: Iterable[str]) -> dict[str, tuple[str, float] | None]:
        """Return `lookup` of many names, embedded together."""
        nearest: dict[str, tuple[str, float] | None] = {}
        unknown = list[str]()
        for name in dict.fromkeys(names):
            exact = self.vocabulary.lookup(name)
            nearest[name] = (exact, 1.0) if exact is not None else None
            if exact is None:
                unknown.append(name)
        if not self._names:
            return nearest
        for start in range(0, len(unknown), PIECE):
            part = unknown[start : start + PIECE]
            near = unit(self.embed([canonical(name) for name in part])) @ self._rows.T
            near = near.toarray() if sparse.issparse(near) else np.asarray(near)
            for name, row in zip(part, near, strict=True):
                best = int(row.argmax())
                if row[best] >= self.least:
                    nearest[name] = self._ids[best], float(min(row[best], 1.0))
        return nearest


def characters(names: Iterable[str]) -> Embed:
    """Return an embedding by TF-IDF of 2 to 4 neighbouring letters inside words, fitted on `names`.

    It needs no model, and knows spelling alone: "haemorrhage" is near "hemorrhage", and "fever" far from
    "pyrexia".
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    known = [canonical(name) for name in names]
    if not any(known):
        return lambda texts: sparse.csr_matrix((len(texts), 1))
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True).fit(known)
    return lambda texts: vectorizer.transform(list(texts))


def unit(rows: Any) -> Any:
    """Return rows of unit norm, dense or sparse; rows of zeros stay."""
    if sparse.issparse(rows):
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        return sparse.diags(1 / np.maximum(norms, 1e-12)) @ rows
    rows = np.asarray(rows, dtype=float)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
