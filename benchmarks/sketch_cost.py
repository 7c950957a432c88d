# SPDX-License-Identifier: Apache-2.0
"""What sketches of knowledge graphs cost, and how near they come to the exact Jaccard similarity.

    python benchmarks/sketch_cost.py [--triples 1000,10000,100000] [--k 256,1024] [--keys 20]

`cost`: processor seconds with one thread and bytes of a signature, by kind, triples and k; `exact` is the
Jaccard similarity of the two graphs themselves, which no server may see. `accuracy`: for pairs of graphs of
every overlap and so many keys, the mean and the root mean square of Ĵ − J beside the standard error that
theory gives, and the largest error beside what it stays below in 95 % of cases.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from medflare.selection.minhash import Sketcher
from medflare.selection.sketch_key import SECRET, SketchKey
from medflare.selection.sketches import KINDS, Kind, error_bound, estimated_jaccard, standard_error
from medflare.selection.triples import Triple, jaccard, weighted_jaccard

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
        for kind in KINDS:
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
    for kind in KINDS:
        for k in ks:
            for shared in SHARED:
                yield from _errors(kind, k, shared, keys)


def _errors(kind: Kind, k: int, shared: float, keys: int) -> Iterator[tuple[str, ...]]:
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
    given = parser.parse_args()
    heads = ("triples", "kind", "k", "sketch, s", "exact J, s", "bytes")
    table("cost", heads, cost(given.triples, given.k))
    heads = ("kind", "k", "J", "mean error", "RMS error", "theory", "largest error", "95 % bound")
    table("accuracy", heads, accuracy(given.k, given.keys))


if __name__ == "__main__":
    main()
