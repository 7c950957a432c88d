# SPDX-License-Identifier: Apache-2.0
"""FedAvg: the mean of the sites' updates, weighted by examples (McMahan et al. 2017; MRG-17)."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from medflare.aggregation.base import AggregationRule, RuleFacts, SiteWeight, Weighting
from medflare.aggregation.capabilities import ReadsMetrics
from medflare.aggregation.norm_clip import NormClipSettings, clip_factors, needs_each_update
from medflare.core.errors import UpdateError
from medflare.core.idle_settings import idle_if
from medflare.core.tensors import State, add_scaled, apply_delta_in_place, zeros
from medflare.core.update import Update

MOST_TOKENS = 8192
"""Default of `most_tokens`."""


class MeanRule(AggregationRule, ReadsMetrics):
    """Base of rules that need the weighted mean of the updates: θ⁺ = θ + Σ_k w_k Δ_k, Σ w_k = 1 (ML-1, ML-2).

    Attributes:
        weighting, most_tokens: as in `WeightedMean`; a rule that has them as settings sets them.
    """

    weighting: Weighting = "examples"
    most_tokens: int = MOST_TOKENS
    Settings = NormClipSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.settings.clips_norms:
            self.facts = needs_each_update(self.facts)
        self._held: dict[str, State] = {}
        self._clipped: dict[str, Any] = {}
        self._global: State = {}
        self._sum: State = {}
        self._weights: dict[str, float] = {}
        self._shares: dict[str, float] = {}

    def set_weighting(self, weighting: Weighting, most_tokens: int = MOST_TOKENS) -> None:
        """Weigh updates by this unit, here and at sites that weigh their own."""
        self.weighting, self.most_tokens = weighting, most_tokens
        per_example = float(most_tokens) if weighting == "tokens" else 1.0
        self.site_weight = SiteWeight(unit=weighting, most_per_example=per_example)

    def weight(self, site: str, update: Update) -> float:
        """Return how much an update counts before normalisation; UpdateError where its metrics lie."""
        if self.weighting == "tokens":
            return self._tokens(site, update) * update.factor
        return (update.examples if self.weighting == "examples" else 1.0) * update.factor

    def _tokens(self, site: str, update: Update) -> float:
        tokens = update.metrics.get("tokens", math.nan)
        most = update.examples * self.most_tokens
        if not 1 <= tokens <= most:
            raise UpdateError(f"metric 'tokens' of '{site}' is {tokens:g}; weighting needs 1 to {most}.")
        return tokens

    def metrics_read(self) -> tuple[str, ...]:
        return ("tokens",) if self.weighting == "tokens" else ()

    def begin(self, global_state: State) -> None:
        self._global, self._weights, self._sum = global_state, {}, zeros(global_state)
        self._held, self._clipped = {}, {}

    def add(self, site: str, update: Update) -> None:
        """Add the update to the running sum; with `norm_clip`, keep it until all norms are known."""
        weight = self.weight(site, update)
        if self.settings.clips_norms:
            self._held[site] = update.delta
        else:
            add_scaled(self._sum, update.delta, weight)
        self._weights[site] = weight

    def _add_clipped(self) -> None:
        """Add what was kept, scaled down to the median norm."""
        factors, norm = clip_factors(self._held)
        for site, factor in factors.items():
            add_scaled(self._sum, self._held.pop(site), factor * self._weights[site])
        self._clipped = {"norm": norm, "factors": {s: f for s, f in factors.items() if f < 1}}

    def mean(self) -> State:
        """Return Σ w_k Δ_k of what was added, in the place of the running sum, which is used up.

        Raises:
            ValueError: nothing with a positive weight was added.
        """
        total_weight = sum(self._weights.values())
        if total_weight <= 0:
            raise ValueError("no update with a positive weight was added in this round.")
        if self._held:
            self._add_clipped()
        self._shares = {site: weight / total_weight for site, weight in self._weights.items()}
        mean, self._sum = self._sum, {}
        for value in mean.values():
            value.div_(total_weight)
        return mean

    def finish(self) -> State:
        return apply_delta_in_place(self._global, self.mean())

    def report(self) -> dict[str, Any]:
        """Return `weights`: each site's w_k; with `norm_clip`, `clipped`: the median norm, and the factors of
        the updates that were longer."""
        return {"weights": self._shares, **({"clipped": self._clipped} if self._clipped else {})}


class WeightedMean(MeanRule):
    """θ⁺ = θ + Σ_k w_k Δ_k with Σ w_k = 1 over the sites that took part (ML-1, ML-2)."""

    facts = RuleFacts(
        summary="FedAvg: mean of the updates, weighted by training examples.",
        source="McMahan et al. 2017; ML-1, ML-2, MRG-17, VG-1",
    )

    class Settings(NormClipSettings):
        weighting: Weighting = "examples"
        """"examples"; "tokens" for supervised tokens, which a learner reports as its metric `tokens` (what
        the released code of paper 002 does); or "uniform"."""
        most_tokens: int = Field(default=MOST_TOKENS, ge=1)
        """supervised tokens for which one example may count, so that no site can claim any weight."""

        @property
        def without_effect(self) -> dict[str, str]:
            return idle_if((self.weighting != "tokens", f"weighting is '{self.weighting}'", "most_tokens"))

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting(self.settings.weighting, self.settings.most_tokens)
