# SPDX-License-Identifier: Apache-2.0
"""Random problems of client selection, their answers by looking everywhere, and sites seen for a round."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from medflare.core.timing import Timing
from medflare.selection.problem import Problem
from medflare.selection.selectors import SiteStatistics


def random_problem(seed: int, n: int, **more: Any) -> Problem:
    """Distances of random sets, so that 1 − D is a Jaccard matrix."""
    rng = np.random.default_rng(seed)
    sets = rng.random((n, 30)) < rng.uniform(0.2, 0.8, (n, 1))
    sets[:, 0] = True
    both, either = sets.astype(int) @ sets.T, (sets[:, None] | sets[None]).sum(-1)
    shares = rng.dirichlet(np.full(n, 2.0))
    given_ = dict(latencies=rng.uniform(1, 20, n), shares=shares, distances=1 - both / either, draws=3)
    return Problem(sites=tuple(f"s{i}" for i in range(n)), **(given_ | more))


def grid(n: int, parts: int) -> np.ndarray:
    """All points of the simplex with coordinates that are multiples of 1/parts."""
    points = [c for c in product(range(parts + 1), repeat=n - 1) if sum(c) <= parts]
    return np.array([[*c, parts - sum(c)] for c in points]) / parts


def brute(problem: Problem, parts: int) -> float:
    """The best objective on a fine grid of what is allowed."""
    p = grid(len(problem.sites), parts)
    points = problem.floor * problem.shares + (1 - problem.floor) * p
    good = [problem.objective(q) for q in points if problem.feasible(q)]
    return min(good, default=np.inf)


def seen(**seconds: float) -> SiteStatistics:
    """Return what is known after one round of these sites."""
    known = SiteStatistics()
    for site, total in seconds.items():
        known.latencies.observe(site, Timing(total, 0.0))
    return known
