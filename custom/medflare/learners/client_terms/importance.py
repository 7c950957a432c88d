# SPDX-License-Identifier: Apache-2.0
"""Importance weights: a site scales its own update before it is summed unseen (DDCS)."""

from __future__ import annotations

import torch

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec
from medflare.learners.client_terms.base import ClientTerm, Shared, TermOutput

WEIGHT = "importance.weight"


class ImportanceWeight(ClientTerm):
    """The factor w_i / max w, and as a sum w_i itself: Σ w_i turns the masked mean into Σ w_i Δ_i."""

    @staticmethod
    def is_requested(hints: RoundHints) -> bool:
        return hints.importance is not None

    def sums_spec(self, shared: Shared) -> SharedSpec:
        return {WEIGHT: ((), torch.float32)}

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        hint = plan.hints.importance
        assert hint is not None
        self._weight, self._largest = hint.weights.get(site, hint.largest), hint.largest

    def finish(self) -> TermOutput:
        return TermOutput(sums={WEIGHT: torch.tensor(self._weight)}, factor=self._weight / self._largest)
