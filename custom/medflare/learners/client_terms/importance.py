# SPDX-License-Identifier: Apache-2.0
"""Importance weights: a site scales its own update before it is summed unseen (algorithms.md 10, DDCS)."""

from __future__ import annotations

import torch

from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec
from medflare.learners.client_terms.base import Shared, Term, Told

WEIGHT = "importance.weight"


class ImportanceWeight(Term):
    """The factor w_i / max w, and as a sum w_i itself: Σ w_i turns the masked mean into Σ w_i Δ_i."""

    def sums_spec(self, shared: Shared) -> SharedSpec:
        return {WEIGHT: ((), torch.float32)}

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        hint = plan.hints["importance"]
        self._weight = float(hint["weights"].get(site, hint["largest"]))
        self._largest = float(hint["largest"])

    def finish(self) -> Told:
        return Told(sums={WEIGHT: torch.tensor(self._weight)}, factor=self._weight / self._largest)
