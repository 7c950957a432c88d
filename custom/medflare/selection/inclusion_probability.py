# SPDX-License-Identifier: Apache-2.0
"""Expected draws of a site where samples with fewer than L different sites are repeated.

A sum over one or two sites hides nothing, so a draw with too few different sites is thrown away and made
again. That changes how often each site is drawn, and an importance weight must divide by what is true then.
With S draws, P(D = m different sites) = S! [x^S y^m] Π_i (1 + y (e^{q_i x} − 1)), and the expected count of
site i follows from the product over the others.
"""

from __future__ import annotations

import math

import numpy as np

from medflare.selection.objective import Matrix, Vector

HALVINGS = 40
"""Of the interval in which the mixing is searched: to 1e-12."""


def expected_counts(q: Vector, draws: int, least: int = 1) -> tuple[Vector, float]:
    """Return (E[c_i | D ≥ least], P(D ≥ least)); the first is S q_i for `least` 1.

    Exact up to rounding; the counts are NaN where the probability is 0.
    """
    series = _series(q, draws)
    before, after = _products(series, least, draws), _products(series[::-1], least, draws)[::-1]
    orders = float(math.factorial(draws))
    counted = np.arange(draws + 1)
    counts = np.empty_like(q)
    for i, factor in enumerate(series):
        others = _times(before[i], after[i + 1])[: least - 1]
        meanwhile = orders * float(np.sum(others * (counted * factor)[::-1]))
        counts[i] = draws * q[i] - meanwhile
    probability = _enough(before[-1], draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        return counts / probability, probability


def mix_with_uniform(q: Vector, draws: int, least: int, rarest: float) -> tuple[Vector, float]:
    """Return ((1 − m) q + m/N, m) with the smallest m in [0, 1] for which P(D ≥ least) is `rarest` or more.

    P grows with m, as it is Schur-concave in q and mixing makes odds more even. Even odds, and m = 1, where
    these do not get there either.
    """
    if _probability(q, draws, least) >= rarest:
        return q, 0.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = _probability(_mixture(q, middle), draws, least) >= rarest
        low, high = (low, middle) if enough else (middle, high)
    return _mixture(q, high), high


def _mixture(q: Vector, even: float) -> Vector:
    return (1 - even) * q + even / len(q)


def _probability(q: Vector, draws: int, least: int) -> float:
    """Return P(D ≥ least)."""
    return _enough(_products(_series(q, draws), least, draws)[-1], draws)


def _enough(product: Matrix, draws: int) -> float:
    """Return P(D ≥ least) from the product of all sites' factors."""
    return max(1 - math.factorial(draws) * float(np.sum(product[1:, draws])), 0.0)


def _series(q: Vector, draws: int) -> list[Vector]:
    """Return f_i(x) = e^{q_i x} − 1 of each site, up to x^S."""
    return [np.array([0.0, *(p**a / math.factorial(a) for a in range(1, draws + 1))]) for p in q]


def _products(series: list[Vector], least: int, draws: int) -> list[Matrix]:
    """Return products of the first 0, 1, …, N factors 1 + y f_i(x): (least, draws + 1), rows powers of y."""
    product = np.zeros((least, draws + 1))
    product[0, 0] = 1.0
    products = [product]
    for factor in series:
        following = product.copy()
        for m in range(1, least):
            following[m] += np.convolve(product[m - 1], factor)[: draws + 1]
        products.append(following)
        product = following
    return products


def _times(one: Matrix, other: Matrix) -> Matrix:
    """Return the product of two such polynomials, truncated to their shape."""
    least, size = one.shape
    product = np.zeros_like(one)
    for m in range(least):
        for other_m in range(least - m):
            product[m + other_m] += np.convolve(one[m], other[other_m])[:size]
    return product
