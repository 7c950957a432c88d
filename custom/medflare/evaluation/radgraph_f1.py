# SPDX-License-Identifier: Apache-2.0
"""RadGraph F1: what the graphs of two reports have in common, at three levels of strictness.

Delbrouck et al., Improving the Factual Correctness of Radiology Report Generation with Semantic Rewards,
Findings of EMNLP 2022: `simple` compares entities, `partial` also whether an entity has a relation,
`complete` each entity with each of its relations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from medflare.models.radgraph import RadGraph, RadGraphEntity

Entities = Sequence[RadGraphEntity]


def graph_facts(graph: Entities) -> tuple[set[Hashable], set[Hashable], set[Hashable]]:
    """Return what is compared of a graph for simple, partial and complete."""
    simple: set[Hashable] = {(one.words.lower(), one.label) for one in graph}
    partial: set[Hashable] = {(one.words.lower(), one.label, bool(one.relations)) for one in graph}
    complete: set[Hashable] = set()
    for one in graph:
        entity = (one.words.lower(), one.label)
        ends: list[Hashable] = [
            (*entity, label, graph[place].words.lower()) for label, place in one.relations
        ]
        complete |= set(ends or [entity])
    return simple, partial, complete


def graph_f1(reference: Entities, draft: Entities) -> tuple[float, float, float]:
    """Return the F1 of simple, partial and complete; 0 where either graph is empty."""
    pairs = zip(graph_facts(reference), graph_facts(draft), strict=True)
    simple, partial, complete = (_f1(one, other) for one, other in pairs)
    return simple, partial, complete


def _f1(one: set[Hashable], other: set[Hashable]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0


def radgraph_scores(references: Sequence[str], hypotheses: Sequence[str], folder: Path) -> np.ndarray:
    """Return (N, 3): simple, partial and complete of each pair; each different text is read once."""
    model = RadGraph(folder)
    graphs = {text: model.read(text) for text in dict.fromkeys([*references, *hypotheses])}
    rows = [graph_f1(graphs[one], graphs[other]) for one, other in zip(references, hypotheses, strict=True)]
    return np.array(rows).reshape(-1, 3)
