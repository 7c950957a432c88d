# SPDX-License-Identifier: Apache-2.0
"""Knowledge graphs that other programs made (algorithms.md 6.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from medflare.errors import DataError
from medflare.selection.triples import Graph, Triple, graph_of
from medflare.selection.vocabulary import Vocabulary


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """(number, line); DataError that names a file which cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: cannot be read as a list of triples ({type(error).__name__}). Check `triples` in "
            "site.yaml; the file must be UTF-8."
        ) from None
    yield from enumerate(text.splitlines(), 1)


def read_triples(file: Path, vocabulary: Vocabulary | None = None, least: float = 0.0) -> Graph:
    """A graph that another program made: lines of head, relation, tail and, if it scores them, a confidence.

    For outputs of EDC, GreenKGC or AutoAlign brought into tab-separated columns. Names are put into one
    spelling, and into concepts of the vocabulary where it knows them.

    Raises DataError that names file and line.
    """
    found: list[tuple[Triple, float]] = []
    for number, line in _lines(file):
        parts = line.split("\t")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            head, relation, tail, *scores = parts
            (score,) = map(float, scores or ["1"])
            if not 0 < score <= 1:
                raise ValueError
        except ValueError:
            raise DataError(
                f"{file}, line {number}: '{line[:60]}'; expected head, relation, tail and at most one "
                "confidence in (0, 1], with tabs between them."
            ) from None
        if vocabulary is not None:
            head, tail = (vocabulary.lookup(name) or name for name in (head, tail))
        found.append((Triple(head, relation, tail), score))
    return graph_of(found, least)
