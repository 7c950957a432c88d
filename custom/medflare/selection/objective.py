# SPDX-License-Identifier: Apache-2.0
"""Objectives of DDCS as functions of the selection probabilities q, with exact gradients.

Everywhere q, d, t: (N) float64 arrays in the same order of sites; D: (N, N), symmetric, zero diagonal.
"""

from __future__ import annotations

import numpy as np

from medflare.core.arrays import Matrix, Vector


def expected_slowest(q: Vector, t: Vector, draws: int) -> float:
    """Return E[max t_i] of S = `draws` draws: Σ_i [(Σ_{j≤i} q_j)^S − (Σ_{j<i} q_j)^S] t_i by ascending t."""
    order = np.argsort(t, kind="stable")
    powers = np.cumsum(q[order]) ** draws
    return float(np.diff(powers, prepend=0.0) @ t[order])


def expected_slowest_gradient(q: Vector, t: Vector, draws: int) -> Vector:
    """Return the gradient (N) of `expected_slowest`, by ascending t.

    ∂/∂q_m = S (Σq)^(S−1) t_N − Σ_{m ≤ i < N} S (Σ_{j≤i} q_j)^(S−1) (t_{i+1} − t_i).
    """
    order = np.argsort(t, kind="stable")
    ascending = t[order]
    slopes = draws * np.cumsum(q[order]) ** (draws - 1)
    steps = np.append(-slopes[:-1] * np.diff(ascending), slopes[-1] * ascending[-1])
    gradient = np.empty_like(q)
    gradient[order] = np.cumsum(steps[::-1])[::-1]
    return gradient


def slowest_of_each(points: Matrix, t: Vector, draws: int) -> Vector:
    """Return `expected_slowest` of every row of `points` (M, N)."""
    order = np.argsort(t, kind="stable")
    powers = np.cumsum(points[:, order], axis=1) ** draws
    slowest: Vector = np.diff(powers, prepend=0.0, axis=1) @ t[order]
    return slowest


def divergence(q: Vector, D: Matrix) -> float:
    """Return qᵀDq: the mean distance of two draws, in [0, 1] where D is (DD-2)."""
    return float(q @ D @ q)


def divergence_gradient(q: Vector, D: Matrix) -> Vector:
    return (D + D.T) @ q


def distance_between(q: Vector, D: Matrix) -> float:
    """Return qᵀDq / (1 − qᵀq), the mean distance of two draws of different sites; 0 if one site has all odds.

    Drawing few sites again and again makes qᵀDq small whatever their data, and leaves this as it is.
    """
    different = 1 - float(q @ q)
    return divergence(q, D) / different if different > 1e-12 else 0.0


def distance_between_gradient(q: Vector, D: Matrix) -> Vector:
    different = 1 - float(q @ q)
    if different <= 1e-12:
        return np.zeros_like(q)
    return (divergence_gradient(q, D) + 2 * distance_between(q, D) * q) / different


def pairs(draws: int) -> int:
    """Return S(S − 1), the ratio of the slides' sum over ordered pairs of draws to their mean (DD-2)."""
    return draws * (draws - 1)


def variance(q: Vector, d: Vector) -> float:
    """Return Σ d_i²/q_i ≥ 1, with equality for q = d: what q adds to the variance of the update.

    Infinite where a site with data is never drawn: then no weight makes the update unbiased.
    """
    with_data = d > 0
    if np.any(q[with_data] <= 0):
        return float("inf")
    return float(np.sum(d[with_data] ** 2 / q[with_data]))


def variance_gradient(q: Vector, d: Vector) -> Vector:
    gradient = np.zeros_like(q)
    with_data = d > 0
    gradient[with_data] = -((d[with_data] / q[with_data]) ** 2)
    return gradient
