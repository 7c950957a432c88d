# SPDX-License-Identifier: Apache-2.0
"""Geometric median by the smoothed Weiszfeld iteration (RFA, Pillutla et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from medflare.aggregation.base import RuleSettings
from medflare.aggregation.robust import RobustRule, gram_matrix, robust_facts, weighted
from medflare.core.tensors import State


def coordinates(gram: Tensor) -> Tensor:
    """Return (m, m) points with these inner products; each is exact relative to its own length.

    The matrix is scaled to ones on its diagonal first, so that an enormous update costs the others no digits.
    """
    length = gram.diagonal().clamp(min=0).sqrt()
    unit = length.where(length > 0, 1.0)
    values, vectors = torch.linalg.eigh(gram / unit[:, None] / unit[None, :])
    return length[:, None] * vectors * values.clamp(min=0).sqrt()


def weiszfeld(points: Tensor, weights: Tensor, steps: int = 1000, smoothing: float = 1e-6) -> Tensor:
    """Return coefficients a with Σ a_k = 1 such that Σ a_k x_k is the geometric median of the points.

    points: (m, p), around their coordinate-wise median; weights: (m). Distances below `smoothing` times the
    points' median length count as that. It stops when the median moves by less than 1e-9 of that length, not
    when the coefficients settle: a far point may matter with any coefficient.
    """
    a = weights / weights.sum()
    scale = max(float(points.norm(dim=1).median()), 1e-24)
    for _ in range(steps):
        new = weights / (points - a @ points).norm(dim=1).clamp(min=smoothing * scale)
        new = new / new.sum()
        step, a = float(((new - a) @ points).norm()), new
        if step <= 1e-9 * scale:
            break
    return a


class GeometricMedian(RobustRule):
    """θ⁺ = θ + argmin_z Σ_k w_k ‖Δ_k − z‖."""

    facts = robust_facts("Geometric median of the updates.", "RFA (Pillutla et al. 2022)")

    class Settings(RuleSettings):
        weighting: Literal["uniform", "examples"] = "uniform"
        """"uniform", or "examples" as in RFA; the counts are the sites' own word."""

    settings: Settings

    def combine(self, deltas: Sequence[State]) -> State:
        counts = [u.examples if self.settings.weighting == "examples" else 1 for u in self._updates.values()]
        points = coordinates(gram_matrix(deltas))
        weights = weiszfeld(points, torch.tensor(counts, dtype=torch.float64)).tolist()
        self._report["weights"] = dict(zip(self._updates, weights, strict=True))
        return weighted(deltas, weights)
