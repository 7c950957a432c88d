# SPDX-License-Identifier: Apache-2.0
"""Krum and Multi-Krum (Blanchard et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from medflare.aggregation.robust import ByzantineRule, gram_matrix, robust_facts, squared_distances, weighted
from medflare.core.tensors import State


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """Sum of the m − f − 2 (at least one) smallest squared distances to the others (VG-8).

    distances: (m, m). Returns (m); of a single site, 0.
    """
    m = len(distances)
    if m == 1:
        return torch.zeros(1, dtype=distances.dtype)
    others = distances.masked_fill(torch.eye(m, dtype=torch.bool), math.inf)
    return others.sort(dim=1).values[:, : max(m - f - 2, 1)].sum(dim=1)


def unit_length(deltas: Sequence[State]) -> list[State]:
    """Return each update over its own norm, so that small movers are not favoured (VG-9)."""
    out = []
    for delta in deltas:
        squares = [v.double().square().sum() for v in delta.values() if v.is_floating_point()]
        norm = math.sqrt(float(sum(squares))) or 1.0
        out.append({n: v.double() / norm for n, v in delta.items() if v.is_floating_point()})
    return out


class Krum(ByzantineRule):
    """θ⁺ = θ + Δ_k of the site with the lowest score; f = 1 in paper 003."""

    facts = robust_facts(
        "Krum: the one update that is nearest to its neighbours.",
        "Blanchard et al. 2017; FedViT-GPT2 (paper 003); VG-6 to VG-10",
    )
    sites_per_f = (2, 3)

    class Settings(ByzantineRule.Settings):
        directions: bool = False
        """distances between updates of unit length."""

    settings: Settings

    def keeps(self, sites: int) -> int:
        """Return the number of updates that are averaged, out of those of `sites` sites."""
        return 1

    def combine(self, deltas: Sequence[State]) -> State:
        compared = unit_length(deltas) if self.settings.directions else deltas
        scores = krum_scores(squared_distances(gram_matrix(compared)), self.settings.f)
        kept = self.rank(scores)[: self.keeps(len(deltas))]
        sites = list(self._updates)
        self._report["scores"] = dict(zip(sites, scores.tolist(), strict=True))
        self._report["selected"] = sorted(sites[k] for k in kept)
        return weighted(deltas, [float(k in kept) / len(kept) for k in range(len(deltas))])


class MultiKrum(Krum):
    """The plain mean of the updates with the lowest scores."""

    facts = replace(
        Krum.facts, summary="Multi-Krum: mean of the updates that are nearest to their neighbours."
    )

    class Settings(Krum.Settings):
        keep: Annotated[int, Field(ge=1)] | None = None
        """how many; by default m − f − 2."""

    settings: Settings

    def keeps(self, sites: int) -> int:
        keep = self.settings.keep
        return max(sites - self.settings.f - 2, 1) if keep is None else min(keep, sites)
