# SPDX-License-Identifier: Apache-2.0
"""Slow, obviously right versions of the rules on a matrix of updates, one row for each site.

x: (m, n) float64, the sites' values after training; n: examples; loss: validation losses. Each returns (n).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def weighted_mean(x: Array, n: Array, loss: Array) -> Array:
    return (n[:, None] * x).sum(0) / n.sum()


def uniform_mean(x: Array, n: Array, loss: Array) -> Array:
    return x.mean(0)


def influence(x: Array, n: Array, loss: Array) -> Array:
    return weighted_mean(x, n * np.exp(-loss), loss)


def l_fedavg(x: Array, n: Array, loss: Array) -> Array:
    w = 0.5 * n / n.sum() + 0.5 * (1 / loss) / (1 / loss).sum()
    return (w[:, None] * x).sum(0)


def _scores(x: Array, f: int) -> list[float]:
    out = []
    for i in range(len(x)):
        others = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        out.append(sum(others[: max(len(x) - f - 2, 1)]))
    return out


def _best(x: Array, n: Array, f: int) -> int:
    """The lowest score; of equal ones the site with more examples."""
    scores = _scores(x, f)
    return min(range(len(x)), key=lambda i: (scores[i], -n[i]))


def krum(x: Array, n: Array, loss: Array) -> Array:
    return x[_best(x, n, 1)]


def multi_krum(x: Array, n: Array, loss: Array) -> Array:
    return x[np.argsort(_scores(x, 1))[: max(len(x) - 3, 1)]].mean(0)


def medoid(x: Array, n: Array, loss: Array) -> Array:
    return x[int(np.argmin([sum(np.linalg.norm(a - b) for b in x) for a in x]))]


def trimmed_mean(x: Array, n: Array, loss: Array) -> Array:
    return np.array([np.mean(sorted(column)[1:-1]) for column in x.T])


def median(x: Array, n: Array, loss: Array) -> Array:
    return np.median(x, axis=0)


def geometric_median(x: Array, n: Array, loss: Array) -> Array:
    z = x.mean(0)
    for _ in range(20000):
        w = 1 / np.maximum(np.linalg.norm(x - z, axis=1), 1e-12)
        z = (w[:, None] * x).sum(0) / w.sum()
    return z


def bulyan(x: Array, n: Array, loss: Array) -> Array:
    left, chosen = list(range(len(x))), []
    while len(chosen) < len(x) - 2:
        best = left[_best(x[left], n[left], 1)]
        chosen.append(best)
        left.remove(best)
    keep = len(chosen) - 2
    return np.array([np.mean(sorted(c, key=lambda v: abs(v - np.median(c)))[:keep]) for c in x[chosen].T])


def fedadam(x: Array, n: Array, loss: Array) -> Array:
    """The first round from a state of zeros, where it is FedYogi's as well."""
    change = weighted_mean(x, n, loss)
    return 1e-2 * 0.1 * change / (np.sqrt(0.01 * change**2) + 1e-3)


def clipped(rule: Callable[[Array, Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """The rule on rows that are no longer than the lower median of their norms."""

    def reference(x: Array, n: Array, loss: Array) -> Array:
        norms = np.linalg.norm(x, axis=1)
        most = np.sort(norms)[(len(norms) - 1) // 2]
        return rule(x * np.minimum(1, most / norms)[:, None], n, loss)

    return reference
