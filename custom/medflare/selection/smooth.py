# SPDX-License-Identifier: Apache-2.0
"""SLSQP with exact gradients for the problems of DDCS that corners alone do not solve (6.3, DD-1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from medflare.selection.objective import (
    Vector,
    divergence,
    divergence_gradient,
    expected_slowest,
    expected_slowest_gradient,
    variance,
    variance_gradient,
)
from medflare.selection.problem import Problem

ITERATIONS = 200
MARGIN = 1e-8
"""Distance that SLSQP keeps from a constraint, as it stops a little beyond it otherwise."""


def objective_gradient(problem: Problem, q: Vector) -> Vector:
    """Return the gradient of `Problem.objective` at q: (N)."""
    t, d, rho = problem.latencies, problem.shares, problem.variance_rounds
    gradient = expected_slowest_gradient(q, t, problem.draws)
    if not rho:
        return gradient
    rounds = 1 + rho * (variance(q, d) - 1)
    return gradient * rounds + expected_slowest(q, t, problem.draws) * rho * variance_gradient(q, d)


def descend(problem: Problem, start: Vector) -> Vector:
    """Return the local minimum at which SLSQP ends from `start`; feasible if `start` is."""
    # SLSQP's tolerance is absolute: seconds are scaled to values of about 1.
    scale = float(np.max(problem.latencies))
    end = _slsqp(
        problem,
        start,
        lambda q: problem.objective(q) / scale,
        lambda q: objective_gradient(problem, q) / scale,
        [*_cap(problem), *_divergence(problem)],
    )
    return _backtrack(problem, end, start) if problem.feasible(start) else end


def least_divergent(problem: Problem, start: Vector) -> Vector:
    """Return a local minimum of E[div] above the floor and below the cap."""
    return _slsqp(problem, start, problem.divergence, problem.divergence_gradient, _cap(problem))


def _cap(problem: Problem) -> list[dict[str, Any]]:
    most, d = problem.most_variance, problem.shares
    if most is None:
        return []
    return [
        {
            "type": "ineq",
            "fun": lambda q: 1 - MARGIN - variance(q, d) / most,
            "jac": lambda q: -variance_gradient(q, d) / most,
        }
    ]


def _divergence(problem: Problem) -> list[dict[str, Any]]:
    if problem.distances is None:
        return []
    D, limit = problem.metric, problem.limit
    return [
        {
            "type": "ineq",
            "fun": lambda q: limit - MARGIN - divergence(q, D),
            "jac": lambda q: -divergence_gradient(q, D),
        }
    ]


def _slsqp(
    problem: Problem, start: Vector, value: Any, gradient: Any, limits: list[dict[str, Any]]
) -> Vector:
    lowest = problem.floor * problem.shares
    total = {"type": "eq", "fun": lambda q: np.sum(q) - 1, "jac": np.ones_like}
    result = minimize(
        value,
        np.maximum(start, lowest),
        jac=gradient,
        method="SLSQP",
        bounds=[(low, 1.0) for low in lowest],
        constraints=[total, *limits],
        options={"maxiter": ITERATIONS, "ftol": 1e-12},
    )
    q = np.asarray(result.x) if np.all(np.isfinite(result.x)) else start
    # SLSQP may end a rounding error outside the simplex: what lies above the floor is scaled to sum to 1.
    above = np.maximum(q - lowest, 0.0)
    return lowest + above * ((1 - np.sum(lowest)) / np.sum(above)) if np.sum(above) > 0 else start


def _backtrack(problem: Problem, q: Vector, start: Vector) -> Vector:
    """Return q, or a feasible point on the way to it from `start`.

    The steps back begin at 1e-12 of the way and double, as SLSQP misses a constraint by very little.
    """
    share = 1.0
    for _ in range(60):
        if problem.feasible(start + share * (q - start)):
            return start + share * (q - start)
        share = 1 - 2 * (1 - share) if share < 1 else 1 - 1e-12
        if share <= 0:
            break
    return start
