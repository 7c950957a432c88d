# SPDX-License-Identifier: Apache-2.0
"""L-FedAvg: weights from data and from validation losses (paper 003)."""

from __future__ import annotations

import logging
import math
from statistics import median
from typing import Any, Literal

from pydantic import Field

from medflare.aggregation.base import AggregationRule, RuleFacts
from medflare.aggregation.capabilities import ReadsMetrics, Score, ScoresCandidates
from medflare.aggregation.norm_clip import NormClipSettings, clip_factors, needs_each_update
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.idle_settings import idle_if
from medflare.core.tensors import State, add_to_each, apply_delta, apply_delta_in_place, zeros
from medflare.core.update import Update

_log = logging.getLogger(__name__)


class LossFedAvg(AggregationRule, ScoresCandidates, ReadsMetrics):
    """w_k = ω n_k/D + (1−ω) × loss term, D = Σ n_j.

    A reported loss that is missing, negative or not finite is replaced by the median of the others' terms,
    and named; a model whose measured loss is no such number is refused.
    """

    facts = RuleFacts(
        summary="L-FedAvg: mean weighted by examples and by the inverse of the sites' validation losses.",
        source="FedViT-GPT2 (paper 003); VG-2 to VG-5",
        needs="individual",
        instead="rule 'weighted_mean', or rule 'influence' with rule_settings {\"mode\": \"client\"}",
    )

    class Settings(NormClipSettings):
        omega: float = Field(default=0.5, ge=0, le=1)
        """ω, the share of the examples in a weight; the rest is the losses'."""
        loss_weight: Literal["normalised", "raw"] = "normalised"
        """"normalised": the loss terms (1/ℓ_k) / Σ(1/ℓ_j), so that ω means what it says; "raw": 1/ℓ_k and
        then all w_k over their sum, as in the paper (VG-2)."""
        loss_source: Literal["client", "server", "cross"] = "client"
        """"client": ℓ_k is the site's own word, on its own validation data (VG-4: different data, and
        forgeable); "server": the server measures every trained model on its own validation set; "cross":
        every site measures every trained model, ℓ_k is the loss over all their validation data."""
        loss_metric: str = "val_loss"
        """with "client", the metric of an update that holds ℓ_k, of the trained model (VG-5)."""
        floor: float = Field(default=1e-3, gt=0)
        """smallest ℓ that counts, else one near-zero loss takes the whole average (VG-3)."""

        @property
        def without_effect(self) -> dict[str, str]:
            source = f"loss_source is '{self.loss_source}'"
            return idle_if((self.loss_source != "client", source, "loss_metric"))

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.settings.norm_clip is not None:
            self.facts = needs_each_update(self.facts)
        self.measured = self.settings.loss_source != "client"
        self.scored_by = "sites" if self.settings.loss_source == "cross" else "server"
        self._score: Score | None = None

    def disabled_capabilities(self) -> tuple[type, ...]:
        return () if self.measured else (ScoresCandidates,)

    def set_score(self, score: Score) -> None:
        """Take the function that measures a candidate; not for `loss_source` "client"."""
        self._score = score

    def metrics_read(self) -> tuple[str, ...]:
        return () if self.measured else (self.settings.loss_metric,)

    def begin(self, global_state: State) -> None:
        self._held: dict[str, State] = {}
        self._clipped: dict[str, Any] = {}
        if self.measured and self._score is None:
            raise ConfigError(
                f"rule 'l_fedavg' with loss_source '{self.settings.loss_source}' needs somebody who measures "
                'the models, and there is nobody. Set rule_settings: {"loss_source": "client"}.'
            )
        self._global = global_state
        self._by_data, self._by_loss = zeros(global_state), zeros(global_state)
        self._replaced: State = {}
        self._examples: dict[str, int] = {}
        self._terms: dict[str, float] = {}
        self._losses: dict[str, float] = {}

    def add(self, site: str, update: Update) -> None:
        """Add the update to two running sums: Σ n_k Δ_k and Σ (1/ℓ_k) Δ_k.

        The weights are known only when the last loss is, and D and Σ 1/ℓ_j are constants of the round: two
        sums are enough, however many sites there are. A term without a usable loss becomes the median of the
        others, which is known at the end only, so those updates go into a third sum, Σ Δ_k. With `norm_clip`
        the updates are kept until all norms are known.
        """
        loss = self._loss(site, update)
        self._examples[site] = update.examples
        if math.isfinite(loss) and loss >= 0:
            self._losses[site], self._terms[site] = loss, 1 / max(loss, self.settings.floor)
        else:
            _log.warning(
                "L-FedAvg: %s of %s is %s; the median stands in for it.",
                self.settings.loss_metric,
                site,
                loss,
            )
            self._replaced = self._replaced or zeros(self._global)
        if self.settings.norm_clip is None:
            self._add_scaled(site, update.delta, 1.0)
        else:
            self._held[site] = update.delta

    def _add_scaled(self, site: str, delta: State, factor: float) -> None:
        """Add factor · Δ_k to the sums it belongs to."""
        by_loss, term = (self._by_loss, self._terms[site]) if site in self._terms else (self._replaced, 1.0)
        add_to_each([(self._by_data, factor * self._examples[site]), (by_loss, factor * term)], delta)

    def _add_clipped(self) -> None:
        """Add what was kept, scaled down to the median norm."""
        factors, norm = clip_factors(self._held)
        for site, factor in factors.items():
            self._add_scaled(site, self._held.pop(site), factor)
        self._clipped = {"norm": norm, "factors": {s: f for s, f in factors.items() if f < 1}}

    def _loss(self, site: str, update: Update) -> float:
        """Return ℓ_k as `loss_source` says, NaN where a site reported none.

        Raises:
            UpdateError: the loss was to be measured here and is no finite number of 0 or more.
        """
        if self._score is None or not self.measured:
            return float(update.metrics.get(self.settings.loss_metric, math.nan))
        loss = self._score(site, apply_delta(self._global, update.delta))
        if not (math.isfinite(loss) and loss >= 0):
            raise UpdateError(f"its model has a validation loss of {loss}, expected a finite number")
        return loss

    def finish(self) -> State:
        """Return θ + Σ w_k Δ_k from the running sums.

        With terms t_k, D = Σ n_j, T = Σ t_j and s = 1 − ω, divided by T where terms are normalised:
        w_k = (ω n_k/D + s t_k) / (ω + s T). The divisor is 1 with normalised terms and makes the weights of
        `raw` ones sum to one (VG-2).
        """
        if not self._examples:
            raise ValueError("no update was added in this round.")
        if self._held:
            self._add_clipped()
        omega, normalised = self.settings.omega, self.settings.loss_weight == "normalised"
        middle = median(self._terms.values()) if self._terms else 1.0
        terms = {site: self._terms.get(site, middle) for site in self._examples}
        data, losses = sum(self._examples.values()), sum(terms.values())
        share = (1 - omega) / (losses if normalised else 1.0)
        total = omega + share * losses
        self._shares = {
            site: (omega * n / data + share * terms[site]) / total for site, n in self._examples.items()
        }
        change = {}
        for name in self._global:
            # each sum is used up as it goes, so that no third model is in memory
            by_data, by_loss = self._by_data.pop(name), self._by_loss.pop(name)
            if self._replaced:
                by_loss.add_(self._replaced.pop(name), alpha=middle)
            change[name] = by_data.mul_(omega / data / total).add_(by_loss, alpha=share / total)
        return apply_delta_in_place(self._global, change)

    def report(self) -> dict[str, Any]:
        """Return `weights`: each w_k; `losses`: the ℓ_k that could be used; `replaced`: sites without one;
        `clipped` as in `MeanRule`."""
        replaced = sorted(set(self._examples) - set(self._losses))
        clipped = {"clipped": self._clipped} if self._clipped else {}
        return {"weights": self._shares, "losses": self._losses, "replaced": replaced, **clipped}
