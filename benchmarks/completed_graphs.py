# SPDX-License-Identifier: Apache-2.0
"""Test of whether completion brings hospitals' distances nearer to those of what they know, on real facts.

    python benchmarks/completed_graphs.py [--data $MEDFLARE_DATA] [--hospitals 6] [--missing 0.2]

Each hospital sees a part of the diseases and symptoms of the Disease Ontology. Its texts leave out a share of
its facts, another one at each hospital. Distances of the incomplete and of the completed graphs are compared
with those of the whole ones.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medflare.data.settings.knowledge import CompletionConfig
from medflare.knowledge.completion import suggest_triples
from medflare.knowledge.triples import Triple, jaccard

Facts = dict[Triple, float]


def of_ontology(folder: Path) -> dict[str, list[Triple]]:
    """Disease -> its symptoms."""
    found: dict[str, list[Triple]] = {}
    with open(folder / "kg" / "disease_symptom.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            triple = Triple(row["disease_label"], "has symptom", row["symptom_label"])
            found.setdefault(row["disease_label"], []).append(triple)
    return found


def whole_graphs(facts: dict[str, list[Triple]], hospitals: int) -> list[Facts]:
    """Knowledge of each hospital from complete texts: 40 to 80 % of the diseases."""
    graphs = []
    for number in range(hospitals):
        random = np.random.default_rng(number)
        names = random.choice(sorted(facts), round(len(facts) * random.uniform(0.4, 0.8)), replace=False)
        graphs.append({triple: 1.0 for name in names for triple in facts[name]})
    return graphs


def without(graph: Facts, missing: float, seed: int) -> Facts:
    """The graph without a share of its facts."""
    kept = np.random.default_rng(1000 + seed).random(len(graph)) >= missing
    return {triple: 1.0 for triple, there in zip(graph, kept, strict=True) if there}


def similarities(graphs: Sequence[Facts]) -> np.ndarray:
    """Jaccard similarity of each pair."""
    return np.array([jaccard(one, other) for one, other in itertools.combinations(graphs, 2)])


def row(name: str, whole: Sequence[Facts], seen: Sequence[Facts], graphs: Sequence[Facts]) -> str:
    added = [graph.keys() - own.keys() for graph, own in zip(graphs, seen, strict=True)]
    right = [new & full.keys() for new, full in zip(added, whole, strict=True)]
    true, found = similarities(whole), similarities(graphs)
    error = np.sqrt(np.mean((found - true) ** 2))
    follows = np.corrcoef(found, true)[0, 1]
    count, hits = sum(map(len, added)), sum(map(len, right))
    return f"| {name} | {count} | {hits} | {found.mean():.3f} | {error:.3f} | {follows:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MEDFLARE_DATA", ".")))
    parser.add_argument("--hospitals", type=int, default=6)
    parser.add_argument("--missing", type=float, default=0.2, help="share of the facts that texts leave out")
    parser.add_argument("--epochs", type=int, default=60)
    given = parser.parse_args()
    whole = whole_graphs(of_ontology(given.data), given.hospitals)
    seen = [without(graph, given.missing, seed) for seed, graph in enumerate(whole)]
    settings = CompletionConfig(epochs=given.epochs, least_score=0.05)
    suggested = [suggest_triples(graph, settings) for graph in seen]
    sizes = [len(graph) for graph in whole]
    print(f"{given.hospitals} hospitals, {min(sizes)} to {max(sizes)} facts, {given.missing:.0%} missing\n")
    print("| graphs | added | of them missing facts | mean J | RMS error of J | correlation |")
    print("|---|---:|---:|---:|---:|---:|")
    print(row("whole", whole, whole, whole))
    print(row("as the texts say", whole, seen, seen))
    for least in (0.5, 0.3, 0.2, 0.1):
        graphs = [
            own | {triple: 1.0 for triple, sure in more.items() if sure >= least}
            for own, more in zip(seen, suggested, strict=True)
        ]
        print(row(f"completed from {least}", whole, seen, graphs))


if __name__ == "__main__":
    main()
