# SPDX-License-Identifier: Apache-2.0
"""The medoid: what paper 003 describes in prose where its formula says Krum (VG-8)."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.aggregation.robust import RobustRule, gram_matrix, robust_facts, squared_distances
from medflare.core.tensors import State


class Medoid(RobustRule):
    """θ⁺ = θ + Δ_k of the site with the smallest sum of Euclidean distances to all others."""

    facts = robust_facts(
        "Medoid: the one update with the smallest sum of distances to all others.",
        "FedViT-GPT2 (paper 003), prose; VG-7, VG-8",
    )

    def combine(self, deltas: Sequence[State]) -> State:
        scores = squared_distances(gram_matrix(deltas)).sqrt().sum(dim=1)
        best, sites = self.rank(scores)[0], list(self._updates)
        self._report = {"scores": dict(zip(sites, scores.tolist(), strict=True)), "selected": [sites[best]]}
        return deltas[best]
