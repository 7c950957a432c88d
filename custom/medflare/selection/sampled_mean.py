# SPDX-License-Identifier: Apache-2.0
"""Mean over sampled clients, weighted by their selection probabilities (DD-4, DD-5, DD-8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from medflare.aggregation.base import SiteWeight
from medflare.aggregation.capabilities import (
    AllowsSiteFactors,
    AsksClientTerms,
    CountsAbortedRounds,
    NeedsLatencies,
    NeedsSumMembers,
    SamplesClients,
    UsesAuxiliarySums,
)
from medflare.aggregation.lora import MERGED
from medflare.aggregation.product_restart import ProductRestart
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.data_order import derived_seed
from medflare.core.errors import ConfigError
from medflare.core.hints import ImportanceHint, RoundHints
from medflare.core.sketch import Sketch
from medflare.core.tensors import State, apply_delta_in_place, squares
from medflare.core.timing import Timing
from medflare.core.update import Update
from medflare.selection.latency import Latencies
from medflare.selection.sampling import Sample, data_shares
from medflare.selection.selectors import Selector, SiteStatistics

AveragingMode = Literal["factor_delta", "product_restart"]
PRODUCTS = MappingProxyType({"mode": "product_restart"})
"""Settings of a rule that works on stacked pairs."""
WEIGHT = "importance.weight"
"""The sum Σ w_i of the sites whose updates are in a sum that nobody could look into."""
MAX_SAMPLES = 100
SLACK = 1e-3
"""Largest relative difference of a sum's Σ w_i from the known one, for the rounding of masks."""


class SampledMean(
    MeanRule,
    SamplesClients,
    AsksClientTerms,
    UsesAuxiliarySums,
    CountsAbortedRounds,
    AllowsSiteFactors,
    NeedsLatencies,
    NeedsSumMembers,
):
    """θ⁺ = θ + Σ w_i Δ_i over the different sites of a draw; unbiased odds make E θ⁺ = θ + Σ d_i Δ_i.

    A site that was drawn and gave no update adds nothing, and nobody takes its part: the step is the smaller
    one, its age goes on growing, and `vanished` of the report names it. Rounds without a draw weigh by data.

    LoRA pairs (DD-4): mode "factor_delta" steps with the differences of both factors, unbiased for the
    factors; "product_restart" with their products, unbiased for these, which needs each update.
    """

    auxiliary_sums = assigned_sums = (WEIGHT,)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting("uniform")
        self.site_weight = SiteWeight(unit="uniform", most_factor=1.0)
        self.factor_clip = 20.0
        self._product: ProductRestart | None = None
        self._sample: Sample | None = None
        self._total_weight: float | None = None
        self._sum_members: frozenset[str] | None = None
        self._refused_total: float | None = None

    def set_selector(self, selector: Selector, latencies: Latencies) -> None:
        """Sample with this selector from what `latencies` and later observations say of the sites."""
        self.selector, self.known = selector, SiteStatistics(latencies=latencies)

    def set_mode(self, mode: AveragingMode, most_rank: int | None) -> None:
        """Step with differences of LoRA factors, or with products, whose facts differ."""
        if mode == "product_restart":
            if self.settings.clips_norms:
                raise ValueError(
                    'norm_clip is "median" and mode "product_restart": products of factors are not clipped. '
                    'Set mode to "factor_delta", or norm_clip to null.'
                )
            self._product = ProductRestart(most_rank)
            self.facts = replace(
                type(self).facts,
                needs="individual",
                streams=False,
                sharing=("stack",),
                extra_tensors=(MERGED,),
                sum_with=MappingProxyType({"mode": "factor_delta"}),
                instead='rule_settings {"mode": "factor_delta"}, which needs a sum alone',
            )

    # ---- what the server learns beside updates -----------------------------------------------------------

    def observe_latency(self, site: str, timing: Timing) -> None:
        self.known.latencies.observe(site, timing)

    def report_timeout(self, site: str, waited: float) -> None:
        self.known.latencies.report_timeout(site, waited)
        self.selector.report_timeout()

    def set_sum_members(self, sites: Iterable[str]) -> None:
        self._sum_members = frozenset(sites)

    # ---- before a round ----------------------------------------------------------------------------------

    def sample_clients(
        self,
        round_number: int,
        seed: int,
        examples: Mapping[str, int],
        eligible: Sequence[str],
        min_clients: int = 1,
    ) -> list[str]:
        shares = data_shares(examples, list(eligible))
        if not shares:
            raise ConfigError(f"none of the sites {', '.join(sorted(eligible))} has training examples.")
        random = np.random.default_rng(derived_seed(seed, "selection", round_number))
        self._sample = self.selector.choose(round_number, shares, self.known, random, min_clients)
        return self._sample.sites

    def client_terms(self) -> RoundHints:
        weights = dict(self._sample.weights) if self._sample else {}
        largest = max(weights.values(), default=1.0)
        return RoundHints(importance=ImportanceHint(weights=weights, largest=largest))

    # ---- the round ---------------------------------------------------------------------------------------

    def begin(self, global_state: State) -> None:
        super().begin(global_state if self._product is None else self._product.begin(global_state))
        self._total_weight = self._sum_members = self._refused_total = None

    def weight(self, site: str, update: Update) -> float:
        """Return w_i as the server knows it; 1 for a sum of all sampled sites, n_k without a sample."""
        if self._sample is None:
            return float(update.examples)
        return self._sample.weights.get(site, 1.0)

    def add(self, site: str, update: Update) -> None:
        super().add(site, update)
        if self._sample is not None and site not in self._sample.weights:
            self._total_weight = float(update.sums[WEIGHT])
        if self._product is not None:
            self._product.add(site, update.delta)
        if self.facts.needs == "individual":
            self.known.norms[site] = math.sqrt(sum(map(squares, update.delta.values())))

    def finish(self) -> State:
        """Return θ + Σ w_i Δ_i; the state as it was where the Σ w_i of an opened sum is wrong.

        `mean` divides by the weights it was given. Importance weights must not be normalised (their sum is 1
        only in expectation), so the mean is multiplied by Σ w_i again.
        """
        change = self.mean()
        weights = self._shares
        if self._sample is not None:
            total = sum(self._weights.values()) if self._total_weight is None else self._total_weight
            if self._is_forged(total):
                return self._refuse_sum()
            for value in change.values():
                value.mul_(total)
            weights = self._weights
            self._update_staleness(self._trained())
        new = apply_delta_in_place(self._global, change)
        return new if self._product is None else new | self._product.finish(weights)

    def _is_forged(self, total: float) -> bool:
        """Return whether the Σ w_i inside an opened sum is not that of the sites in it, which are known.

        One site that lies about its own w_i could scale the honest updates of all others unseen.
        """
        if self._total_weight is None or self._sum_members is None or self._sample is None:
            return False
        expected = sum(self._sample.weights[site] for site in self._trained())
        return not abs(total - expected) <= SLACK * max(expected, 1.0)

    def _refuse_sum(self) -> State:
        """Return the state as it was; the round counts as one in which nobody trained."""
        self._refused_total = self._total_weight
        self.abort_round()
        return {name: value.clone() for name, value in self._global.items()}

    def abort_round(self) -> None:
        """Close a round without a step: the staleness of all sampled sites grows."""
        self._shares, self._weights, self._total_weight, self._sum_members = {}, {}, None, None
        if self._sample is not None:
            self._update_staleness(())

    def _trained(self) -> frozenset[str]:
        """Return whose updates are in the step; all that were sampled, where a sum names no members."""
        if self._total_weight is None:
            return frozenset(self._weights)
        sampled = frozenset(self._sample.counts) if self._sample else frozenset[str]()
        return sampled if self._sum_members is None else sampled & self._sum_members

    def _update_staleness(self, trained: Iterable[str]) -> None:
        """Count the rounds since each site's last update, also of sites that could not be sampled."""
        fresh = set(trained)
        assert self._sample is not None
        staleness = self.known.staleness
        for site in {**staleness, **self._sample.probabilities}:
            staleness[site] = 0 if site in fresh else staleness.get(site, 0) + 1

    def update_server_state(self, totals: State, sites: int) -> State:
        return {name: value for name, value in totals.items() if name != WEIGHT}

    # ---- records -----------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return `weights`: shares in the step; `importance`: the w_i; `drawn`: c_i; `odds`: the q_i used;
        `ages`: staleness; `latencies`.

        `mixed`: share of even odds in `odds`, where enough different sites would hardly have come together.

        `checks` of mode product_restart: norm of the step of all products, largest rank of a merged pair, and
        the largest relative error of cutting one to `most_rank`.
        """
        report = super().report()
        if self._product is not None:
            report |= {"checks": dict(self._product.checks)}
        if self._sample is None:
            return report
        return report | {
            "importance": dict(self._sample.weights),
            "drawn": dict(self._sample.counts),
            "vanished": sorted(set(self._sample.counts) - self._trained()),
            "odds": dict(self._sample.probabilities),
            **({"mixed": self._sample.mixed} if self._sample.mixed else {}),
            "ages": dict(self.known.staleness),
            "latencies": self.known.latencies.report(),
            **({} if self._refused_total is None else {"refused_sum": self._refused_total}),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "latencies": self.known.latencies.state_dict(),
            "sketches": {site: sketch.to_bytes().hex() for site, sketch in self.known.sketches.items()},
            "sizes": dict(self.known.sizes),
            "shared": [[*pair, both] for pair, both in sorted(self.known.shared.items())],
            "ages": dict(self.known.staleness),
            "norms": dict(self.known.norms),
            "losses": dict(self.known.losses),
            "selector": self.selector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.known.latencies.load_state_dict(state["latencies"])
        kept = state["sketches"].items()
        self.known.sketches = {site: Sketch.from_bytes(bytes.fromhex(data), site) for site, data in kept}
        self.known.sizes = dict(state.get("sizes", {}))
        self.known.shared = {(one, other): both for one, other, both in state.get("shared", [])}
        self.known.staleness, self.known.norms = dict(state["ages"]), dict(state["norms"])
        self.known.losses = dict(state.get("losses", {}))
        self.selector.load_state_dict(state["selector"])
