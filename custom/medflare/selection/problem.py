# SPDX-License-Identifier: Apache-2.0
"""The recommended problem of DDCS, and an answer to it (DD-1, DD-2, DD-6, DD-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from medflare.core.errors import ConfigError
from medflare.selection.objective import (
    Matrix,
    Vector,
    distance_between,
    distance_between_gradient,
    divergence,
    divergence_gradient,
    expected_slowest,
    variance,
)

SLACK = 1e-9
"""Tolerance of a constraint, for rounding."""
PairsOf = Literal["draws", "sites"]
"""Pairs whose mean distance ε limits: two draws, where a site drawn twice counts as 0 (DD-2), or two draws of
different sites (6.3: "divergence over distinct clients")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """min E[max t] with Σ q = 1, q_i ≥ φ d_i, E[div] ≤ ε and Σ d_i²/q_i ≤ V.

    Attributes:
        sites: N names; only those with data.
        latencies: t_i > 0, seconds; shares: d_i > 0, which sum to 1.
        distances: D (N, N), symmetric, in [0, 1], zero diagonal; None while nobody has sent a sketch, which
            takes the constraint away.
        draws: S.
        floor: φ in (0, 1]; bounds every importance weight d_i/(S q_i) by 1/(S φ).
        epsilon: ε, the largest mean distance of two draws; None for what q = d attains (DD-10).
        pairs_of: which pairs E[div] is the mean of: qᵀDq of draws, qᵀDq / (1 − qᵀq) of sites.
        most_variance: V ≥ 1; None for no cap.
        variance_rounds: ρ ≥ 0; the objective is E[max t] · (1 + ρ (Σ d_i²/q_i − 1)), as more variance takes
            more rounds (DD-6). 0 is the slides' constant number of rounds.
    """

    sites: tuple[str, ...]
    latencies: Vector
    shares: Vector
    distances: Matrix | None = None
    draws: int = 5
    floor: float = 0.2
    epsilon: float | None = None
    most_variance: float | None = None
    variance_rounds: float = 0.0
    pairs_of: PairsOf = "draws"

    def __post_init__(self) -> None:
        if faults := self._faults():
            raise ConfigError("client selection: " + "; ".join(faults) + ".")

    def _faults(self) -> list[str]:
        """Return what is wrong with the numbers, one text for each fault."""
        n, t, d, D = len(self.sites), self.latencies, self.shares, self.distances
        checks = {
            "no site has training examples": n > 0,
            f"{len(t)} latencies and {len(d)} data shares for {n} sites": len(t) == len(d) == n,
            "a latency is not a positive number": bool(np.all(np.isfinite(t) & (t > 0))),
            "data shares are not positive with sum 1": bool(np.all(d > 0))
            and abs(float(np.sum(d)) - 1) < 1e-6,
            f"draws is {self.draws}; expected 1 or more": self.draws >= 1,
            f"pairs_of is {self.pairs_of!r}; expected 'draws' or 'sites'": self.pairs_of in get_args(PairsOf),
            f"floor is {self.floor}; expected more than 0 and at most 1": 0 < self.floor <= 1,
            f"epsilon is {self.epsilon}; expected 0 to 1": self.epsilon is None or 0 <= self.epsilon <= 1,
            f"most_variance is {self.most_variance}; expected 1 or more, as q = d has 1": self.most_variance
            is None
            or self.most_variance >= 1,
            f"variance_rounds is {self.variance_rounds}; expected 0 or more": self.variance_rounds >= 0,
        }
        if D is not None:
            square = D.shape == (n, n)
            checks[f"distances have shape {D.shape}, expected ({n}, {n})"] = square
            checks["distances are not symmetric, within [0, 1] and 0 for a site to itself"] = bool(
                square and np.allclose(D, D.T) and np.all(np.diag(D) == 0) and np.all((D >= 0) & (D <= 1))
            )
        return [fault for fault, holds in checks.items() if not holds]

    @property
    def limit(self) -> float:
        """ε, or the divergence of q = d where none is set."""
        return self.divergence(self.shares) if self.epsilon is None else self.epsilon

    @property
    def metric(self) -> Matrix:
        """M of the constraint qᵀMq ≤ ε: D, or D + εI where pairs are of sites; zeros while there is no D.

        Of sites, qᵀDq / (1 − qᵀq) ≤ ε is the same as qᵀ(D + εI)q ≤ ε.
        """
        if self.distances is None:
            return np.zeros((len(self.sites),) * 2)
        diagonal = self.limit if self.pairs_of == "sites" else 0.0
        return self.distances + diagonal * np.eye(len(self.sites))

    def divergence(self, q: Vector) -> float:
        """Return E[div] as `pairs_of` counts it; 0 while there is no D."""
        if self.distances is None:
            return 0.0
        return (
            distance_between(q, self.distances) if self.pairs_of == "sites" else divergence(q, self.distances)
        )

    def divergence_gradient(self, q: Vector) -> Vector:
        """Return the gradient of `divergence` at q: (N)."""
        if self.distances is None:
            return np.zeros_like(q)
        of_pairs = distance_between_gradient if self.pairs_of == "sites" else divergence_gradient
        return of_pairs(q, self.distances)

    def objective(self, q: Vector) -> float:
        """Return the expected seconds of a round, times the rounds that the variance of q costs."""
        time = expected_slowest(q, self.latencies, self.draws)
        return time * (1 + self.variance_rounds * (variance(q, self.shares) - 1))

    def within_cap(self, q: Vector) -> bool:
        """Return whether the variance of q keeps the cap."""
        return self.most_variance is None or variance(q, self.shares) <= self.most_variance * (1 + SLACK)

    def in_region(self, q: Vector) -> bool:
        """Return whether q is on the simplex, above the floor and below the variance cap."""
        above = bool(np.all(q >= self.floor * self.shares - SLACK))
        return above and abs(float(np.sum(q)) - 1) < SLACK and self.within_cap(q)

    def feasible(self, q: Vector) -> bool:
        """Return whether q keeps every constraint."""
        return self.in_region(q) and self.keeps_epsilon(q)

    def keeps_epsilon(self, q: Vector) -> bool:
        """Return whether the divergence of q is at most ε."""
        return self.divergence(q) <= self.limit + SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Probabilities of being drawn, and the time, divergence and variance of a round with them.

    Attributes:
        q: (N) in the order of the problem's sites.
        found_as: "extreme point", "edge", "SLSQP", "data shares" or "least divergent".
        feasible: whether ε is kept; if not, q is the least divergent choice there is.
        smallest_epsilon: the smallest ε found that can be kept with this floor and cap; the smallest there is
            where pairs are of draws and no cap is set.
        proven: no q is faster by more than `optimiser.GAIN`; otherwise q is the best of a search.
    """

    sites: tuple[str, ...]
    q: Vector
    found_as: str
    feasible: bool
    epsilon: float
    smallest_epsilon: float
    expected_slowest: float
    divergence: float
    variance: float
    proven: bool

    @property
    def probabilities(self) -> Mapping[str, float]:
        """Site -> q_i."""
        return dict(zip(self.sites, self.q.tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the solution for run.json: JSON types."""
        names = (
            "found_as",
            "feasible",
            "epsilon",
            "smallest_epsilon",
            "expected_slowest",
            "divergence",
            "variance",
        )
        return {"q": dict(self.probabilities)} | {name: getattr(self, name) for name in (*names, "proven")}
