# SPDX-License-Identifier: Apache-2.0
"""Rules that choose who trains and weigh by the odds of that choice (algorithms.md 6.2; DD-4, DD-5, DD-8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

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
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.data_order import derived_seed
from medflare.core.errors import ConfigError
from medflare.core.hints import ImportanceHint, RoundHints
from medflare.core.tensors import State, settled, squares
from medflare.core.update import Update
from medflare.knowledge.sketches import Sketch
from medflare.selection.latency import Latencies, Timing
from medflare.selection.sampling import Draw, shares_of
from medflare.selection.selectors import Known, Selector

Mode = Literal["factor_delta", "product_restart"]
PRODUCTS = MappingProxyType({"mode": "product_restart"})
"""Settings of a rule that works on stacked pairs."""
WEIGHT = "importance.weight"
"""The sum Σ w_i of the sites whose updates are in a sum that nobody could look into."""
MOST_DRAWS = 100
SLACK = 1e-3
"""How far the Σ w_i of a sum may be from the known one, by the rounding of masks."""


class Selecting(
    WeightedMean,
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

    Args:
        mode: of LoRA pairs (DD-4): "factor_delta" steps with the differences of both factors, unbiased for
            the factors; "product_restart" with their products, unbiased for these, which needs each update.
        most_rank: of "product_restart", the rank above which merged factors are approximated.
    """

    needs: Literal["sum", "individual"] = "sum"
    reads_sum = True
    auxiliary_sums = (WEIGHT,)

    def __init__(
        self,
        selector: Selector,
        latencies: Latencies,
        mode: Mode = "factor_delta",
        most_rank: int | None = None,
    ) -> None:
        super().__init__("uniform")
        self._product = _product_of(mode, most_rank)
        if self._product is not None:
            self.needs, self.streams, self.sharing, self.outside_spec = (
                "individual",
                False,
                ("stack",),
                (MERGED,),
            )
            self.sum_with = MappingProxyType({"mode": "factor_delta"})
            self.instead = 'rule_settings {"mode": "factor_delta"}, which needs a sum alone'
        self.selector, self.known = selector, Known(latencies=latencies)
        self.factor_clip = 20.0
        self.most_factor = 1.0
        self._draw: Draw | None = None
        self._whole: float | None = None
        self._there: frozenset[str] | None = None
        self._refused: float | None = None

    # ---- what the server learns beside updates -----------------------------------------------------------

    def observe_latency(self, site: str, timing: Timing) -> None:
        """What a round took a site."""
        self.known.latencies.observe(site, timing)

    def report_timeout(self, site: str, waited: float) -> None:
        """A site that was drawn gave no answer in so many seconds."""
        self.known.latencies.lapsed(site, waited)
        self.selector.lapsed()

    def set_sum_members(self, sites: Iterable[str]) -> None:
        """Before `finish`: whose updates are in a sum that nobody could look into."""
        self._there = frozenset(sites)

    # ---- before a round ----------------------------------------------------------------------------------

    def sample_clients(
        self,
        round_number: int,
        seed: int,
        examples: Mapping[str, int],
        eligible: Sequence[str],
        min_clients: int = 1,
    ) -> list[str]:
        shares = shares_of(examples, list(eligible))
        if not shares:
            raise ConfigError(f"none of the sites {', '.join(sorted(eligible))} has training examples.")
        random = np.random.default_rng(derived_seed(seed, "selection", round_number))
        self._draw = self.selector.choose(round_number, shares, self.known, random, min_clients)
        return self._draw.sites

    def client_terms(self) -> RoundHints:
        """`weights`: site -> w_i; `largest` of them, by which sites divide before a masked sum."""
        weights = dict(self._draw.weights) if self._draw else {}
        largest = max(weights.values(), default=1.0)
        return RoundHints(importance=ImportanceHint(weights=weights, largest=largest))

    # ---- the round ---------------------------------------------------------------------------------------

    def begin(self, global_state: State) -> None:
        super().begin(global_state if self._product is None else self._product.begin(global_state))
        self._whole = self._there = self._refused = None

    def weight(self, site: str, update: Update) -> float:
        """w_i as the server knows it; a sum of all drawn sites counts as it is."""
        if self._draw is None:
            return float(update.examples)
        return self._draw.weights.get(site, 1.0)

    def add(self, site: str, update: Update) -> None:
        super().add(site, update)
        if self._draw is not None and site not in self._draw.weights:
            self._whole = float(update.sums[WEIGHT])
        if self._product is not None:
            self._product.add(site, update.delta)
        if self.needs == "individual":
            self.known.norms[site] = math.sqrt(sum(map(squares, update.delta.values())))

    def finish(self) -> State:
        change = self.mean()
        weights = self._shares
        if self._draw is not None:
            whole = sum(self._weights.values()) if self._whole is None else self._whole
            if self._off(whole):
                return self._refuse_sum()
            for value in change.values():
                value.mul_(whole)
            weights = self._weights
            self._grow_older(self._trained())
        new = settled(self._global, change)
        return new if self._product is None else new | self._product.finish(weights)

    def _off(self, whole: float) -> bool:
        """Whether the Σ w_i inside an opened sum is not that of the sites that are in it, which are known.

        One site that lies about its own could scale the honest updates of all others without knowing them.
        """
        if self._whole is None or self._there is None or self._draw is None:
            return False
        right = sum(self._draw.weights[site] for site in self._trained())
        return not abs(whole - right) <= SLACK * max(right, 1.0)

    def _refuse_sum(self) -> State:
        """The state as it was; the round counts as one that nobody trained in."""
        self._refused = self._whole
        self.abort_round()
        return {name: value.clone() for name, value in self._global.items()}

    def abort_round(self) -> None:
        """Nobody who was drawn is in the step: all grow older."""
        self._shares, self._weights, self._whole, self._there = {}, {}, None, None
        if self._draw is not None:
            self._grow_older(())

    def _trained(self) -> frozenset[str]:
        """Whose updates are in the step; all that were drawn, where a sum does not tell."""
        if self._whole is None:
            return frozenset(self._weights)
        drawn = frozenset(self._draw.counts) if self._draw else frozenset[str]()
        return drawn if self._there is None else drawn & self._there

    def _grow_older(self, trained: Iterable[str]) -> None:
        """All sites, those too that could not be drawn."""
        there = set(trained)
        assert self._draw is not None
        for site in {**self.known.ages, **self._draw.odds}:
            self.known.ages[site] = 0 if site in there else self.known.ages.get(site, 0) + 1

    def update_server_state(self, totals: State, sites: int) -> State:
        return {name: value for name, value in totals.items() if name != WEIGHT}

    # ---- records -----------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """`weights`: shares in the step; `importance`: the w_i; `drawn`: c_i; `odds`; `ages`; `latencies`.

        `mixed`: share of even odds in `odds`, where enough different sites would hardly have come together.

        `checks` of mode product_restart: norm of the step of all products, largest rank of a merged pair, and
        the largest relative error of cutting one to `most_rank`.
        """
        found = super().report()
        if self._product is not None:
            found |= {"checks": dict(self._product.checks)}
        if self._draw is None:
            return found
        return found | {
            "importance": dict(self._draw.weights),
            "drawn": dict(self._draw.counts),
            "vanished": sorted(set(self._draw.counts) - self._trained()),
            "odds": dict(self._draw.odds),
            **({"mixed": self._draw.mixed} if self._draw.mixed else {}),
            "ages": dict(self.known.ages),
            "latencies": self.known.latencies.report(),
            **({} if self._refused is None else {"refused_sum": self._refused}),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "latencies": self.known.latencies.state_dict(),
            "sketches": {site: sketch.to_bytes().hex() for site, sketch in self.known.sketches.items()},
            "sizes": dict(self.known.sizes),
            "shared": [[*pair, both] for pair, both in sorted(self.known.shared.items())],
            "ages": dict(self.known.ages),
            "norms": dict(self.known.norms),
            "selector": self.selector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.known.latencies.load_state_dict(state["latencies"])
        kept = state["sketches"].items()
        self.known.sketches = {site: Sketch.from_bytes(bytes.fromhex(data), site) for site, data in kept}
        self.known.sizes = dict(state.get("sizes", {}))
        self.known.shared = {(one, other): both for one, other, both in state.get("shared", [])}
        self.known.ages, self.known.norms = dict(state["ages"]), dict(state["norms"])
        self.selector.load_state_dict(state["selector"])


def _product_of(mode: str, most_rank: int | None) -> ProductRestart | None:
    if mode not in ("factor_delta", "product_restart"):
        raise ValueError(f"mode is '{mode}'; expected 'factor_delta' or 'product_restart'.")
    if most_rank is not None and most_rank < 1:
        raise ValueError(f"most_rank is {most_rank}; expected 1 or more.")
    return ProductRestart(most_rank) if mode == "product_restart" else None
