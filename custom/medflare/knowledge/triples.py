# SPDX-License-Identifier: Apache-2.0
"""Triples (head, relation, tail) with a confidence, in one spelling and one byte form."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_ACCENTS = {code: None for code in range(0x0300, 0x0370)}
_SPACE = re.compile(r"\s+")
_EDGE = " .,;:!?\"'`()[]{}<>-–—_*"


class Triple(NamedTuple):
    """One statement of a knowledge graph."""

    head: str
    relation: str
    tail: str


Graph = Mapping[Triple, float]
"""Canonical triple -> confidence in (0, 1]; a triple that was read in the text itself has 1."""


def canonical(text: str) -> str:
    """Return a name in one spelling: NFKC, case folded, no Latin accents, single spaces, bare edges.

    Only combining marks U+0300 to U+036F go: in other scripts a mark may be a vowel.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = unicodedata.normalize("NFD", folded).translate(_ACCENTS)
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", bare)).strip(_EDGE)


def canonical_triple(triple: Triple) -> Triple | None:
    """Return a triple in one spelling; None where a part is empty then, or head and tail are the same."""
    spelled = Triple(*map(canonical, triple))
    return spelled if all(spelled) and spelled.head != spelled.tail else None


def graph_of(triples: Iterable[tuple[Triple, float]], least: float = 0.0) -> dict[Triple, float]:
    """Return the graph of (triple, confidence): each triple once, with the best confidence it was given.

    Args:
        least: triples below it are left out, as completed ones with a low score.

    Raises:
        ValueError: a confidence is outside (0, 1].
    """
    graph: dict[Triple, float] = {}
    for given, confidence in triples:
        if not 0 < confidence <= 1:
            raise ValueError(
                f"confidence of {tuple(given)} is {confidence}; expected more than 0 and up to 1."
            )
        triple = canonical_triple(given)
        if triple is not None and confidence >= least:
            graph[triple] = max(confidence, graph.get(triple, 0.0))
    return graph


def serialised(triple: Triple) -> bytes:
    """Return the bytes that are hashed: each part in UTF-8 after its length in four bytes, big-endian.

    Lengths make ("a", "bc", …) and ("ab", "c", …) different.
    """
    parts = [part.encode() for part in triple]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def jaccard(one: Graph, other: Graph) -> float:
    """Return |g ∩ h| / |g ∪ h|; 0 where both are empty, as nothing is shared then (DD-3)."""
    union = len(one.keys() | other.keys())
    return len(one.keys() & other.keys()) / union if union else 0.0


def weighted_jaccard(one: Graph, other: Graph) -> float:
    """Return Σ min(c, c') / Σ max(c, c') over the triples of both; `jaccard` if all confidences are 1."""
    both = one.keys() | other.keys()
    union = sum(max(one.get(triple, 0.0), other.get(triple, 0.0)) for triple in both)
    shared = sum(min(one.get(triple, 0.0), other.get(triple, 0.0)) for triple in both)
    return shared / union if union else 0.0
