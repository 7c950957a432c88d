# SPDX-License-Identifier: Apache-2.0
"""Cost of sketches of knowledge graphs, and their distance from the exact Jaccard similarity.

    python benchmarks/sketch_cost.py [--triples 1000,10000,100000] [--k 256,1024] [--keys 20] [--data FOLDER]

`cost`: processor seconds with one thread and bytes of a signature, by kind, triples and k; `exact` is the
Jaccard similarity of the two graphs themselves, which no server may see. `accuracy`: for pairs of graphs of
every overlap and so many keys, the mean and the root mean square of Ĵ − J beside the standard error that
theory gives, and the largest error beside what it stays below in 95 % of cases. `exact`: seconds and bytes of
private set intersection between two such graphs, where openmined.psi is installed.

`real`, with a folder that holds `kg` and `qa`: Ĵ of every pair of the graphs that hospitals would have of
MedMCQA's subjects and of MedQA's questions, and of 20 parts of the Disease Ontology that overlap; one key.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from medflare.core.sketch import SKETCH_KINDS, SketchKind
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import Question
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import SiteConfig
from medflare.knowledge.cohort_texts import knowledge_texts
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.private_intersection import (
    IntersectionClient,
    IntersectionServer,
    keyed_elements,
    shared_size,
)
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.sketch_key import SECRET, SketchKey
from medflare.knowledge.sketches import error_bound, estimated_jaccard, jaccard_interval, standard_error
from medflare.knowledge.triples import Triple, graph_of, jaccard, weighted_jaccard

SHARED = (0.05, 0.2, 0.5, 0.8, 0.95)
"""Parts of each of two graphs that are in both."""
SIZE = 2000
"""Triples of each graph whose accuracy is measured."""
Numbered = dict[Triple, float]


def graph(first: int, count: int, seed: int = 0) -> Numbered:
    """Triples first … first + count − 1 with confidences between 0.2 and 1."""
    sure = np.random.default_rng(seed).uniform(0.2, 1, count).tolist()
    return {
        Triple(f"doid:{i % 997:07d}", "has symptom", f"symp:{i:07d}"): sure[i - first]
        for i in range(first, first + count)
    }


def key(number: int) -> SketchKey:
    return SketchKey(number.to_bytes(SECRET, "big"), "benchmark")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def cost(sizes: list[int], ks: list[int]) -> Iterator[tuple[str, ...]]:
    """Rows of the first table."""
    for size in sizes:
        one, other = graph(0, size), graph(size // 2, size)
        for kind in SKETCH_KINDS:
            started = time.process_time()
            (jaccard if kind == "set" else weighted_jaccard)(one, other)
            exact = time.process_time() - started
            for k in ks:
                sketcher = Sketcher(key(0), k, kind)
                started = time.process_time()
                sketch = sketcher.sketch(one)
                seconds = time.process_time() - started
                sent = len(sketch.to_bytes())
                yield f"{size:,}", kind, str(k), f"{seconds:.3f}", f"{exact:.3f}", f"{sent:,}"


def accuracy(ks: list[int], keys: int) -> Iterator[tuple[str, ...]]:
    """Rows of the second table."""
    for kind in SKETCH_KINDS:
        for k in ks:
            for shared in SHARED:
                yield from _errors(kind, k, shared, keys)


def _errors(kind: SketchKind, k: int, shared: float, keys: int) -> Iterator[tuple[str, ...]]:
    one, other = graph(0, SIZE, 1), graph(round(SIZE * (1 - shared)), SIZE, 2)
    true = jaccard(one, other) if kind == "set" else weighted_jaccard(one, other)
    errors = []
    for number in range(keys):
        sketcher = Sketcher(key(number), k, kind)
        errors.append(estimated_jaccard(sketcher.sketch(one), sketcher.sketch(other)) - true)
    found = np.array(errors)
    spread, expected = np.sqrt(np.mean(found**2)), standard_error(k, true)
    bounds = f"{np.abs(found).max():.4f}", f"{error_bound(k):.4f}"
    yield kind, str(k), f"{true:.4f}", f"{found.mean():+.4f}", f"{spread:.4f}", f"{expected:.4f}", *bounds


def real(folder: Path) -> Iterator[tuple[str, ...]]:
    """Rows of the table of real graphs."""
    for name, graphs in (
        ("subjects of MedMCQA, parts of MedQA", of_questions(folder)),
        ("parts of the Disease Ontology", of_ontology(folder)),
    ):
        for kind in SKETCH_KINDS:
            yield _real(name, list(graphs.values()), kind)


def of_questions(folder: Path) -> dict[str, Numbered]:
    """Graphs that hospitals with one subject's questions would have; those of MedQA are dealt to four."""
    kg = folder / "kg"
    config = KnowledgeConfig(vocabulary=(kg / "symp.obo", kg / "doid_hierarchy.tsv"), key=Path("unused"))
    dealt: dict[str, list[Question]] = {}
    for name in ("medmcqa_half", "medqa_us_dev"):
        cohort = CohortConfig(format="questions_jsonl", root=folder / "qa", file=f"{name}.jsonl")
        for number, question in enumerate(load_cohort(SiteConfig(name=name, cohort=(cohort,))).questions):
            dealt.setdefault(question.group or f"{name} {number % 4}", []).append(question)
    return {
        group: site_graph(config, knowledge_texts(Cohort(name=group, questions=questions)))
        for group, questions in sorted(dealt.items())
    }


def of_ontology(folder: Path) -> dict[str, Numbered]:
    """Knowledge of 20 hospitals that see 2 to 90 % of the diseases: their symptoms, and what they are."""
    facts: dict[str, list[tuple[Triple, float]]] = {}
    with open(folder / "kg" / "disease_symptom.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            triple = Triple(row["disease_label"], "has symptom", row["symptom_label"])
            facts.setdefault(row["disease_label"], []).append((triple, 1.0))
    with open(folder / "kg" / "doid_hierarchy.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            parents = filter(None, (row["subClassOf"] or "").split("|"))
            said = [(Triple(row["label"], "is a", parent), 0.5) for parent in parents]
            facts.setdefault(row["label"], []).extend(said)
    names, found = sorted(facts), {}
    for hospital in range(20):
        drawn = random.Random(hospital)
        seen = drawn.sample(names, round(len(names) * drawn.uniform(0.02, 0.9)))
        found[str(hospital)] = graph_of(fact for name in seen for fact in facts[name])
    return found


def _real(name: str, graphs: list[Numbered], kind: SketchKind) -> tuple[str, ...]:
    sketches = [Sketcher(key(1), kind=kind).sketch(own) for own in graphs]
    similar = jaccard if kind == "set" else weighted_jaccard
    true, told = np.array(
        [
            (similar(graphs[i], graphs[j]), estimated_jaccard(sketches[i], sketches[j]))
            for i, j in itertools.combinations(range(len(graphs)), 2)
        ]
    ).T
    sizes = [len(own) for own in graphs]
    errors = told - true
    k = len(sketches[0].values)
    inside = [
        low <= j <= high for j, t in zip(true, told, strict=True) for low, high in [jaccard_interval(t, k)]
    ]
    return (
        name,
        str(len(graphs)),
        f"{min(sizes):,} to {max(sizes):,}",
        str(len(true)),
        f"{true.min():.3f} to {true.max():.3f}",
        kind,
        f"{np.sqrt(np.mean(errors**2)):.4f}",
        f"{np.sqrt(np.mean([standard_error(k, j) ** 2 for j in true])):.4f}",
        f"{np.abs(errors).max():.4f}",
        f"{np.mean(inside):.3f}",
    )


def exact(sizes: list[int]) -> Iterator[tuple[str, ...]]:
    """Rows of the table of private set intersection; of graphs half of which is shared."""
    for size in sizes:
        one, other = (keyed_elements(graph(first, size), key(0)) for first in (0, size // 2))
        carried: list[int] = []

        def carry(message: bytes, carried: list[int] = carried) -> bytes:
            carried.append(len(message))
            return message

        started = time.process_time()
        shared = shared_size(IntersectionClient(one), IntersectionServer(other), carry)
        yield f"{size:,}", f"{time.process_time() - started:.2f}", f"{sum(carried):,}", f"{shared:,}"


def table(title: str, heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    """Prints a table in Markdown, row by row."""
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--triples", type=numbers, default=[1000, 10_000, 100_000])
    parser.add_argument("--k", type=numbers, default=[256, 1024])
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    heads: tuple[str, ...] = ("triples", "kind", "k", "sketch, s", "exact J, s", "bytes")
    table("cost", heads, cost(given.triples, given.k))
    if importlib.util.find_spec("private_set_intersection"):
        heads = ("triples each", "pair, s", "bytes", "shared")
        table("exact", heads, exact([size for size in given.triples if size <= 10_000]))
    if given.data is not None:
        heads = (
            "graphs",
            "sites",
            "triples",
            "pairs",
            "J",
            "kind",
            "RMS error",
            "theory",
            "largest",
            "in 95 %",
        )
        table("real", heads, real(given.data))
    heads = ("kind", "k", "J", "mean error", "RMS error", "theory", "largest error", "95 % bound")
    table("accuracy", heads, accuracy(given.k, given.keys))


if __name__ == "__main__":
    main()
