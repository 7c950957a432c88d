# SPDX-License-Identifier: Apache-2.0
"""L-FedAvg: weights from data and from validation losses (paper 003; algorithms.md 5.3)."""

from __future__ import annotations

import logging
import math
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import ReadsMetrics, Score, ScoresCandidates
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.tensors import State, add_scaled, add_to_each, moved, settled, zeros
from medflare.core.update import Update

SCORED_BY: dict[str, Literal["server", "sites"]] = {"server": "server", "cross": "sites"}
"""loss_source -> who measures; with "client" nobody does."""

_log = logging.getLogger(__name__)


class LossFedAvg(AggregationRule, ScoresCandidates, ReadsMetrics):
    """w_k = ω n_k/D + (1−ω) × loss term, D = Σ n_j.

    Args:
        omega: ω, the share of the examples in a weight; the rest is the losses'.
        loss_weight: "normalised": the loss terms (1/ℓ_k) / Σ(1/ℓ_j), so that ω means what it says; "raw":
            1/ℓ_k and then all w_k over their sum, as in the paper (VG-2).
        loss_source: "client": ℓ_k is the site's own word, on its own validation data (VG-4: different data,
            and forgeable); "server": the server measures every trained model on its own validation set;
            "cross": every site measures every trained model, ℓ_k is the loss over all their validation data.
        loss_metric: with "client", the metric of an update that holds ℓ_k, of the trained model (VG-5).
        floor: smallest ℓ that counts, else one near-zero loss takes the whole average (VG-3).

    A reported loss that is missing, negative or not finite is replaced by the median of the others' terms,
    and named; a model whose measured loss is no such number is refused.
    """

    needs = "individual"
    instead = "rule 'weighted_mean', or rule 'influence' with rule_settings {\"mode\": \"client\"}"
    summary = "L-FedAvg: mean weighted by examples and by the inverse of the sites' validation losses."
    source = "FedViT-GPT2 (paper 003); algorithms.md 5.3; VG-2 to VG-5"

    def __init__(
        self,
        omega: Annotated[float, Field(ge=0, le=1)] = 0.5,
        loss_weight: Literal["normalised", "raw"] = "normalised",
        loss_source: Literal["client", "server", "cross"] = "client",
        loss_metric: str = "val_loss",
        floor: Annotated[float, Field(gt=0)] = 1e-3,
    ) -> None:
        if not 0 <= omega <= 1:
            raise ValueError(f"omega is {omega}; expected 0 (losses alone) to 1 (examples alone).")
        if loss_weight not in ("normalised", "raw"):
            raise ValueError(f"loss_weight is '{loss_weight}'; expected 'normalised' or 'raw'.")
        if loss_source not in ("client", *SCORED_BY):
            raise ValueError(f"loss_source is '{loss_source}'; expected one of client, server, cross.")
        if not 0 < floor < math.inf:
            raise ValueError(f"floor is {floor}; expected a positive loss.")
        self.omega, self.loss_weight, self.loss_metric, self.floor = omega, loss_weight, loss_metric, floor
        self.loss_source, self.scored_by = loss_source, SCORED_BY.get(loss_source, "server")
        self._score: Score | None = None

    def disabled_capabilities(self) -> tuple[type, ...]:
        return (ScoresCandidates,) if self.loss_source == "client" else ()

    def set_score(self, score: Score) -> None:
        """Gives the rule the function that measures a candidate; not for `loss_source` "client"."""
        self._score = score

    def metrics_read(self) -> tuple[str, ...]:
        return (self.loss_metric,) if self.loss_source == "client" else ()

    def begin(self, global_state: State) -> None:
        if self.loss_source != "client" and self._score is None:
            raise ConfigError(
                f"rule 'l_fedavg' with loss_source '{self.loss_source}' needs somebody who measures the "
                'models, and there is nobody. Set rule_settings: {"loss_source": "client"}.'
            )
        self._global = global_state
        self._by_data, self._by_loss = zeros(global_state), zeros(global_state)
        self._replaced: State = {}
        self._examples: dict[str, int] = {}
        self._terms: dict[str, float] = {}
        self._losses: dict[str, float] = {}

    def add(self, site: str, update: Update) -> None:
        """Two running sums are enough, by data and by loss; a third if a term is known at the end only."""
        loss = self._loss(site, update)
        self._examples[site] = update.examples
        if math.isfinite(loss) and loss >= 0:
            self._losses[site], self._terms[site] = loss, 1 / max(loss, self.floor)
            sums = [(self._by_data, float(update.examples)), (self._by_loss, self._terms[site])]
            add_to_each(sums, update.delta)
        else:
            add_scaled(self._by_data, update.delta, update.examples)
            _log.warning(
                "L-FedAvg: %s of %s is %s; the median stands in for it.", self.loss_metric, site, loss
            )
            self._replaced = self._replaced or zeros(self._global)
            add_scaled(self._replaced, update.delta, 1.0)

    def _loss(self, site: str, update: Update) -> float:
        """ℓ_k as `loss_source` says; NaN where a site told none, UpdateError where none could be measured."""
        if self._score is None or self.loss_source == "client":
            return float(update.metrics.get(self.loss_metric, math.nan))
        loss = self._score(site, moved(self._global, update.delta))
        if not (math.isfinite(loss) and loss >= 0):
            raise UpdateError(f"its model has a validation loss of {loss}, expected a finite number")
        return loss

    def finish(self) -> State:
        if not self._examples:
            raise ValueError("no update was added in this round.")
        middle = median(self._terms.values()) if self._terms else 1.0
        terms = {site: self._terms.get(site, middle) for site in self._examples}
        data, losses = sum(self._examples.values()), sum(terms.values())
        share = (1 - self.omega) / (losses if self.loss_weight == "normalised" else 1.0)
        whole = self.omega + share * losses
        self._shares = {
            site: (self.omega * n / data + share * terms[site]) / whole for site, n in self._examples.items()
        }
        change = {}
        for name in self._global:
            by_data, by_loss = self._by_data.pop(name), self._by_loss.pop(name)
            if self._replaced:
                by_loss.add_(self._replaced.pop(name), alpha=middle)
            change[name] = by_data.mul_(self.omega / data / whole).add_(by_loss, alpha=share / whole)
        return settled(self._global, change)

    def report(self) -> dict[str, Any]:
        """`weights`: each site's w_k; `losses`: the ℓ_k that could be used; `replaced`: sites without one."""
        replaced = sorted(set(self._examples) - set(self._losses))
        return {"weights": self._shares, "losses": self._losses, "replaced": replaced}
