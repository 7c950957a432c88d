# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA+: who does better on validation notes counts more (algorithms.md 4.2; ML-1..4, ML-15)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from medflare.aggregation.capabilities import AllowsSiteFactors, Score, ScoresCandidates, SendsHints
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.hints import InfluenceHint, RoundHints
from medflare.core.tensors import State, moved
from medflare.core.update import Update


def influence_weights(
    losses: Sequence[float], examples: Sequence[int], temperature: float = 1.0, use_data_size: bool = True
) -> list[float]:
    """C_k = n_k I_k / Σ n_j I_j with I_k ∝ exp(-ℓ_k/κ); I_k alone where `use_data_size` is false.

    The smallest loss is subtracted first, so no exponent is positive (ML-3).
    """
    best = min(losses)
    shares = [math.exp((best - loss) / temperature) for loss in losses]
    if use_data_size:
        shares = [share * n for share, n in zip(shares, examples, strict=True)]
    return [share / sum(shares) for share in shares]


class Influence(WeightedMean, ScoresCandidates, SendsHints, AllowsSiteFactors):
    """θ⁺ = θ + Σ_k C_k Δ_k.

    Args:
        mode: "server": the rule scores each candidate itself with the function it was given. "client": each
            site scores its own update and sends the factor; only sums are needed, and sites are trusted
            within `clip`.
        temperature: κ; with losses per token and κ = 1 the weights stay close to FedAvg's.
        use_data_size: false is the code variant without n_k.
        clip: c of the client's factor.

    The running sum is kept relative to the smallest loss so far: memory does not grow with the sites.
    """

    summary = "Fed-MedLoRA+: mean weighted by examples and by the loss on validation notes."
    source = "Fed-MedLoRA+ (paper 002); algorithms.md 4.2, 10; ML-1, ML-2, ML-3, ML-4, ML-15"
    needs: Literal["sum", "individual"] = "individual"
    sum_with = MappingProxyType({"mode": "client"})
    instead = 'rule_settings {"mode": "client"}: every site scores itself on shared validation notes'

    def __init__(
        self,
        mode: Literal["server", "client"] = "server",
        temperature: Annotated[float, Field(gt=0)] = 1.0,
        use_data_size: bool = True,
        clip: Annotated[float, Field(gt=0, le=20)] = 2.0,
    ) -> None:
        super().__init__("examples" if use_data_size else "uniform")
        if mode not in ("server", "client"):
            raise ValueError(f"mode is '{mode}'; expected 'server' or 'client'.")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature is {temperature}; expected a positive number.")
        if not 0 < clip <= 20:
            raise ValueError(f"clip is {clip}; expected more than 0 and at most 20 (a factor of e^20).")
        self.mode, self.temperature, self.use_data_size, self.clip = mode, temperature, use_data_size, clip
        self.needs = "individual" if mode == "server" else "sum"
        self.factor_clip, self.scored_by = clip, "server"
        self._score: Score | None = None
        self._losses: dict[str, float] = {}
        self._told: dict[str, tuple[int, float]] = {}
        self._reference: float | None = None

    def disabled_capabilities(self) -> tuple[type, ...]:
        return (SendsHints, AllowsSiteFactors) if self.mode == "server" else (ScoresCandidates,)

    def set_score(self, score: Score) -> None:
        """Gives the rule the model and D_v behind a function; server mode only."""
        self._score = score

    def begin(self, global_state: State) -> None:
        if self.mode == "server" and self._score is None:
            raise ConfigError(
                "rule 'influence' in server mode needs validation notes and the base model at the server, "
                'which has none. Give it both, or set rule_settings: {"mode": "client"}.'
            )
        super().begin(global_state)
        self._losses, self._told = {}, {}

    def add(self, site: str, update: Update) -> None:
        if self._score is not None and self.mode == "server":
            self._take(site, self._score(site, moved(self._global, update.delta)))
        super().add(site, update)
        told = float(update.metrics.get("shared_loss", math.nan))
        if self.mode == "client" and math.isfinite(told):
            self._told[site] = (update.examples, told)

    def _take(self, site: str, loss: float) -> None:
        """Notes a loss; what was summed so far shrinks when it is the smallest yet."""
        if not math.isfinite(loss):
            raise UpdateError(f"loss {loss} on the server's validation notes, expected a finite number")
        if self._losses and loss < (best := min(self._losses.values())):
            shrink = math.exp((loss - best) / self.temperature)
            for total in self._sum.values():
                total.mul_(shrink)
            self._weights = {other: weight * shrink for other, weight in self._weights.items()}
        self._losses[site] = loss

    def weight(self, site: str, update: Update) -> float:
        weight = super().weight(site, update)
        if self.mode == "client":
            return weight
        return weight * math.exp((min(self._losses.values()) - self._losses[site]) / self.temperature)

    def finish(self) -> State:
        state = super().finish()
        if self._told:
            examples = sum(count for count, _ in self._told.values())
            self._reference = sum(count * loss for count, loss in self._told.values()) / examples
        return state

    def round_hints(self) -> RoundHints:
        """In client mode `influence`: what a site needs for `self_influence`.

        `reference` is ℓ_ref, the mean of what sites told in the last round (None before): close to this
        round's losses, so that factors stay within the clip, and the same for all, so that it cancels.
        """
        hint = InfluenceHint(
            temperature=self.temperature,
            clip=self.clip,
            use_data_size=self.use_data_size,
            reference=self._reference,
        )
        return RoundHints(influence=hint)

    def report(self) -> dict[str, Any]:
        """`weights`: each site's C_k; `losses`: its ℓ_k, scored here or told by the site."""
        told = {site: loss for site, (_, loss) in self._told.items()}
        return super().report() | {"losses": dict(self._losses) if self.mode == "server" else told}

    def state_dict(self) -> dict[str, Any]:
        return {"reference": self._reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reference = state["reference"]
