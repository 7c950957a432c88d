# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA+: who does better on validation notes counts more (ML-1 to ML-4, ML-15)."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median_low
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from medflare.aggregation.base import RuleFacts
from medflare.aggregation.capabilities import AllowsSiteFactors, Score, ScoresCandidates, SendsHints
from medflare.aggregation.norm_clip import NormClipSettings, needs_each_update
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.hints import InfluenceHint, RoundHints
from medflare.core.idle_settings import idle_if
from medflare.core.tensors import State, apply_delta
from medflare.core.update import Update


class Influence(MeanRule, ScoresCandidates, SendsHints, AllowsSiteFactors):
    """θ⁺ = θ + Σ_k C_k Δ_k.

    The running sum is kept relative to the smallest loss so far: memory does not grow with the sites.
    """

    facts = RuleFacts(
        summary="Fed-MedLoRA+: mean weighted by examples and by the loss on validation notes.",
        source="Fed-MedLoRA+ (paper 002); ML-1, ML-2, ML-3, ML-4, ML-15",
        needs="individual",
        sum_with=MappingProxyType({"mode": "client"}),
        instead='rule_settings {"mode": "client"}: every site scores itself on shared validation notes',
    )
    scored_by = "server"

    class Settings(NormClipSettings):
        mode: Literal["server", "client"] = "server"
        """"server": the rule scores each candidate itself with what `bind` gave it. "client": each site
        scores its own update and sends the factor; only sums are needed, and sites are trusted
        within `clip`."""
        temperature: float = Field(default=1.0, gt=0)
        """κ; with losses per token and κ = 1 the weights stay close to FedAvg's."""
        use_data_size: bool = True
        """false is the code variant without n_k."""
        clip: float = Field(default=2.0, gt=0, le=20)
        """c of the client's factor."""

        @property
        def without_effect(self) -> dict[str, str]:
            return idle_if((self.mode == "server", "mode is 'server'", "clip"))

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting("examples" if self.settings.use_data_size else "uniform")
        self.in_client_mode = self.settings.mode == "client"
        if self.in_client_mode:
            facts = replace(type(self).facts, needs="sum")
            self.facts = needs_each_update(facts) if self.settings.clips_norms else facts
        self.factor_clip = self.settings.clip
        self._score: Score | None = None
        self._losses: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._reference: float | None = None

    def disabled_capabilities(self) -> tuple[type, ...]:
        return (SendsHints, AllowsSiteFactors) if not self.in_client_mode else (ScoresCandidates,)

    def set_score(self, score: Score) -> None:
        """Take the function that measures a model on D_v; server mode only."""
        self._score = score

    def begin(self, global_state: State) -> None:
        if not self.in_client_mode and self._score is None:
            raise ConfigError(
                "rule 'influence' in server mode needs validation notes and the base model at the server, "
                'which has none. Give it both, or set rule_settings: {"mode": "client"}.'
            )
        super().begin(global_state)
        self._losses, self._reported = {}, {}

    def add(self, site: str, update: Update) -> None:
        if self._score is not None and not self.in_client_mode:
            self._record_loss(site, self._score(site, apply_delta(self._global, update.delta)))
        super().add(site, update)
        reported = float(update.metrics.get("shared_loss", math.nan))
        if self.in_client_mode and math.isfinite(reported):
            self._reported[site] = reported

    def _record_loss(self, site: str, loss: float) -> None:
        """Record ℓ_k; when it is the smallest yet, scale what was summed so far down to it.

        Raises:
            UpdateError: the loss is not finite.
        """
        if not math.isfinite(loss):
            raise UpdateError(f"loss {loss} on the server's validation notes, expected a finite number")
        if self._losses and loss < (best := min(self._losses.values())):
            shrink = math.exp((loss - best) / self.settings.temperature)
            for total in self._sum.values():
                total.mul_(shrink)
            self._weights = {other: weight * shrink for other, weight in self._weights.items()}
        self._losses[site] = loss

    def weight(self, site: str, update: Update) -> float:
        weight = super().weight(site, update)
        if self.in_client_mode:
            return weight
        return weight * math.exp(
            (min(self._losses.values()) - self._losses[site]) / self.settings.temperature
        )

    def finish(self) -> State:
        state = super().finish()
        if self._reported:
            self._reference = median_low(self._reported.values())
        return state

    def round_hints(self) -> RoundHints:
        """Return what a site needs to score itself, in client mode.

        `reference` is ℓ_ref, the lower median of what sites reported in the last round (None before): close
        to this round's losses, so that factors stay within the clip, and the same for all, so that it
        cancels. In a mean, one site's enormous loss would take all factors to the clip, where they say
        nothing.
        """
        hint = InfluenceHint(
            temperature=self.settings.temperature,
            clip=self.settings.clip,
            use_data_size=self.settings.use_data_size,
            reference=self._reference,
        )
        return RoundHints(influence=hint)

    def report(self) -> dict[str, Any]:
        """Return `weights`: each site's C_k; `losses`: its ℓ_k, scored here or reported by the site."""
        return super().report() | {"losses": dict(self._reported if self.in_client_mode else self._losses)}

    def state_dict(self) -> dict[str, Any]:
        return {"reference": self._reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reference = state["reference"]
