# SPDX-License-Identifier: Apache-2.0
"""Distances between the sites' knowledge graphs: D = 1 − Ĵ of their sketches (6.1, DD-2, DD-3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from medflare.core.arrays import Matrix
from medflare.core.sketch import Sketch
from medflare.knowledge.sketches import check_comparable


def distance_matrix(sketches: Mapping[str, Sketch], sites: Sequence[str]) -> Matrix:
    """Return D (N, N) in the order of `sites`; 1 from an empty graph to every other site, 0 to itself (DD-3).

    A site without a sketch is as far from every other as those are from each other on average: nothing is
    known of it, and neither 0 nor 1 should speak for it or against it.

    Raises UpdateError where sketches were made with different keys, contexts, kinds or k.
    """
    known = [site for site in sites if site in sketches]
    check_comparable({site: sketches[site] for site in known})
    distances = np.full((len(sites), len(sites)), np.nan)
    for i, one in enumerate(sites):
        for j in range(i):
            if one in sketches and sites[j] in sketches:
                distances[i, j] = distances[j, i] = _distance(sketches[one], sketches[sites[j]])
    typical = float(np.nanmean(distances)) if len(known) > 1 else 1.0
    distances[np.isnan(distances)] = typical
    np.fill_diagonal(distances, 0.0)
    return distances


def _distance(one: Sketch, other: Sketch) -> float:
    if one.empty or other.empty:
        return 1.0
    return 1.0 - float(np.mean(one.values == other.values))


def drift(before: Sketch, now: Sketch) -> float:
    """Return how far a site's graph moved since its last sketch; a reason to solve again (DD-9)."""
    check_comparable({"before": before, "now": now})
    return _distance(before, now)


def due_for_sketch(examples_then: int, examples_now: int, growth: float) -> bool:
    """Return whether local data changed by more than the share `growth` since the last sketch (DD-9)."""
    return abs(examples_now - examples_then) > growth * max(examples_then, 1)
