# SPDX-License-Identifier: Apache-2.0
"""Solve the problem of DDCS (DD-1).

E[max t] is concave in q, and so is qᵀDq on the simplex where D = 1 − J with J positive semi-definite. Without
a cap on the variance the feasible set is therefore a simplex without a convex set, and the hull of that has
its extreme points on the simplex's edges (Hillestad and Jacobsen 1980, reverse convex programs): looking at
the N extreme points φ d + (1 − φ) e_i, and at where the edges between them meet qᵀDq = ε, finds the optimum.
With a cap, with ε on pairs of different sites, or with an objective that counts rounds, that argument fails,
and SLSQP starts from those points.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from medflare.core.errors import ConfigError
from medflare.selection.objective import (
    Matrix,
    Vector,
    expected_slowest,
    slowest_of_each,
    variance,
)
from medflare.selection.problem import SLACK, Problem, Solution
from medflare.selection.smooth import descend, least_divergent

STARTS = 12
"""Most starting points of SLSQP of each kind."""
NEAREST = (2, 3, 5, 9)
"""Sizes of the groups of similar sites that a search starts from."""
GAIN = 1e-3
"""The share of a round's seconds below which being faster is worth no variance."""
OnInfeasible = Literal["relax", "error"]


def solve(problem: Problem, on_infeasible: OnInfeasible = "relax") -> Solution:
    """Return the best q found, never worse than q = d where that keeps ε.

    Args:
        on_infeasible: where no q keeps ε, "relax" returns the least divergent one, marked as not feasible.

    Raises:
        ConfigError: no q keeps ε and `on_infeasible` is "error"; names the smallest ε that can be kept.
    """
    corners = _corners(problem)
    # The least divergent q comes first: it decides whether there is a solution at all.
    calmest = _least_divergent_point(problem, [q for _, q in corners])
    smallest = problem.divergence(calmest)
    if smallest > problem.limit + SLACK:
        if on_infeasible == "error":
            raise ConfigError(_cannot(problem, smallest))
        return _solution(problem, calmest, "least divergent", smallest, feasible=False)
    exact = problem.variance_rounds == 0 and _concave(problem.metric)
    candidates = [("data shares", problem.shares), *corners, ("least divergent", calmest)]
    candidates += [("alike sites", q) for q in _similar_sites(problem)]
    candidates = [(name, q) for name, q in candidates if problem.keeps_epsilon(q)]
    feasible = [(name, q) for name, q in candidates if problem.feasible(q)]
    # The corners hold the optimum without the cap. If that one is within the cap too, no search
    # can improve on it.
    proven = exact and problem.within_cap(_best(problem, candidates, 1)[0][1])
    if not proven:
        feasible += [("SLSQP", q) for q in _search(problem, candidates, feasible) if problem.feasible(q)]
    name, q = _choose(problem, feasible)
    return _solution(problem, q, name, smallest, feasible=True, proven=proven)


def extreme_points(problem: Problem) -> Matrix:
    """Return the extreme points of {q ≥ φ d, Σ q = 1} as rows (N, N): row i is φ d + (1 − φ) e_i."""
    n = len(problem.sites)
    return problem.floor * problem.shares + (1 - problem.floor) * np.eye(n)


def _corners(problem: Problem) -> list[tuple[str, Vector]]:
    """Return points that keep floor and ε, not always the cap: extreme points, and edges where they meet ε.

    On the edge λ x_i + (1 − λ) x_j the divergence is a λ² + b λ + G_jj with a = G_ii − 2 G_ij + G_jj and
    b = 2 (G_ij − G_jj), where G holds x_iᵀ D x_j; it meets ε at the roots in (0, 1).
    """
    points, limit = extreme_points(problem), problem.limit
    G = points @ problem.metric @ points.T
    corners = [("extreme point", q) for q, g in zip(points, np.diag(G), strict=True) if g <= limit + SLACK]
    i, j = np.triu_indices(len(points), 1)
    first, second = G[i, i] - 2 * G[i, j] + G[j, j], 2 * (G[i, j] - G[j, j])
    for root in _roots(first, second, G[j, j] - limit):
        inside = (root > 0) & (root < 1)
        mixed = root[inside, None] * points[i[inside]] + (1 - root[inside, None]) * points[j[inside]]
        corners += [("edge", q) for q in mixed]
    return corners


def _roots(a: Vector, b: Vector, c: Vector) -> Iterator[Vector]:
    """Yield both solutions of a λ² + b λ + c = 0, NaN where there is none.

    b and the root are added with the same sign, so that no digits cancel (Numerical Recipes 5.6).
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        half = -(b + np.where(b < 0, -1.0, 1.0) * np.sqrt(b * b - 4 * a * c)) / 2
        yield half / a
        yield c / half


def _similar_sites(problem: Problem) -> list[Vector]:
    """Return points at which a site and its nearest ones share, by their data, all that the floor leaves."""
    if problem.distances is None:
        return []
    points = []
    for near in np.argsort(problem.distances, axis=1, kind="stable"):
        for size in NEAREST:
            group = np.zeros_like(problem.shares)
            group[near[:size]] = problem.shares[near[:size]]
            points.append(problem.floor * problem.shares + (1 - problem.floor) * group / group.sum())
    return points


def _concave(metric: Matrix) -> bool:
    """Return whether xᵀDx ≤ 0 wherever Σ x = 0, which makes qᵀDq concave on the simplex.

    It is for D = 1 − J of sketches, as their J is a Gram matrix.
    """
    n = len(metric)
    centre = np.eye(n) - 1 / n
    return bool(np.linalg.eigvalsh(centre @ metric @ centre)[-1] <= 1e-9)


def _least_divergent_point(problem: Problem, more: list[Vector]) -> Vector:
    """Return the least divergent q found above the floor and below the cap; `more`: other candidates.

    A concave function is least at an extreme point, so without a cap in the way no search is needed. Of
    equally divergent points the fastest counts.
    """
    points = extreme_points(problem)
    values = np.array([problem.divergence(q) for q in points])
    lowest = values <= values.min() + SLACK
    best = min(points[lowest], key=lambda q: expected_slowest(q, problem.latencies, problem.draws))
    if problem.within_cap(best) and problem.pairs_of == "draws" and _concave(problem.metric):
        return np.asarray(best)
    starts = sorted(
        (_within_cap(problem, q) for q in (*points, *_similar_sites(problem))), key=problem.divergence
    )
    ends = [least_divergent(problem, start) for start in starts[:STARTS]]
    candidates = [problem.shares, *more, *starts[:STARTS], *ends]
    return min((q for q in candidates if problem.in_region(q)), key=problem.divergence)


def _search(
    problem: Problem, candidates: list[tuple[str, Vector]], feasible: list[tuple[str, Vector]]
) -> Iterator[Vector]:
    """Yield starts and ends of SLSQP: corners moved towards q = d until the cap holds, and `feasible`.

    Each corner gives a start, whether it keeps ε or not, up to `STARTS` of each kind: between cap and ε there
    can be several local minima.
    """
    corners = [("extreme point", q) for q in extreme_points(problem)]
    starts = [
        _within_cap(problem, q) for group in (corners, candidates) for _, q in _best(problem, group, STARTS)
    ]
    starts += [q for _, q in _best(problem, feasible, STARTS)]
    for start in starts:
        yield start
        yield descend(problem, start)


def _best(problem: Problem, candidates: list[tuple[str, Vector]], count: int) -> list[tuple[str, Vector]]:
    """Return the `count` candidates with the smallest objective."""
    points = np.stack([q for _, q in candidates])
    values = slowest_of_each(points, problem.latencies, problem.draws)
    if problem.variance_rounds:
        values = np.array([problem.objective(q) for q in points])
    return [candidates[i] for i in np.argsort(values, kind="stable")[:count]]


def _within_cap(problem: Problem, q: Vector) -> Vector:
    """Return the point nearest to q on the way to d that keeps the cap.

    Bisection finds it: the variance is convex and least at d, so it grows all the way from d to q.
    """
    if problem.within_cap(q):
        return q
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if problem.within_cap(problem.shares + middle * (q - problem.shares)):
            low = middle
        else:
            high = middle
    return problem.shares + low * (q - problem.shares)


def _choose(problem: Problem, feasible: list[tuple[str, Vector]]) -> tuple[str, Vector]:
    """Return, of the points that are as fast as the fastest, the one of smallest variance.

    Where all sites are equally fast that is q = d.
    """
    values = [problem.objective(q) for _, q in feasible]
    best = min(values)
    equal = [item for item, value in zip(feasible, values, strict=True) if value <= best * (1 + GAIN)]
    return min(equal, key=lambda item: variance(item[1], problem.shares))


def _solution(
    problem: Problem, q: Vector, found_as: str, smallest: float, *, feasible: bool, proven: bool = False
) -> Solution:
    return Solution(
        sites=problem.sites,
        q=q,
        found_as=found_as,
        feasible=feasible,
        epsilon=problem.limit,
        smallest_epsilon=smallest,
        expected_slowest=expected_slowest(q, problem.latencies, problem.draws),
        divergence=problem.divergence(q),
        variance=variance(q, problem.shares),
        proven=proven,
    )


def _cannot(problem: Problem, smallest: float) -> str:
    cap = "" if problem.most_variance is None else f" and most_variance {problem.most_variance:g}"
    advised = np.ceil(smallest * 1e4) / 1e4
    return (
        f"client selection: epsilon is {problem.limit:.6g}, and with floor {problem.floor:g}{cap} two draws "
        f"differ by {smallest:.6g} on average at least. Set epsilon to {advised:g} or more, or lower the "
        "floor; on_infeasible 'relax' goes on with the least divergent choice."
    )
