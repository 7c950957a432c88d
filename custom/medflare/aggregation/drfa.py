# SPDX-License-Identifier: Apache-2.0
"""DRFA: sites on which the model is bad are drawn more often (Deng et al. 2020; algorithms.md 7.6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from medflare.aggregation.capabilities import (
    AllowsSiteFactors,
    AsksClientTerms,
    Probe,
    ProbesLosses,
    SamplesClients,
    UsesAuxiliarySums,
)
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.data_order import derived_seed
from medflare.core.hints import RoundHints, SnapshotHint
from medflare.core.tensors import State, moved
from medflare.core.update import Update

SNAPSHOT, DRAWN = "snapshot.", "drawn"
MOST_DRAWS = 128
"""In a round, where a job names no m: a site's own weight must have a bound before it can be masked."""


def onto_simplex(values: np.ndarray) -> np.ndarray:
    """The nearest point of {x ≥ 0, Σ x = 1} in the Euclidean norm (Duchi et al. 2008). values: (K)."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(values) + 1)
    found: np.ndarray = np.maximum(values - excess[np.flatnonzero(falling > excess)[-1]], 0)
    return found


class Drfa(WeightedMean, SamplesClients, AsksClientTerms, UsesAuxiliarySums, ProbesLosses, AllowsSiteFactors):
    """min over θ of max over λ of Σ λ_k f_k(θ): m sites drawn ~ λ with replacement, and their uniform mean.

    λ starts at n_k/N. After each round m sites, drawn uniformly, tell the loss f_k of the mean of all
    snapshots on one batch of their training examples: v_k = (K/m) f_k, λ⁺ = Proj(λ + γ τ v).

    Args:
        m: how often a site is drawn in a round; by default as often as there are sites.
        step: γ τ, which moves λ: 0.01 is the γ = 0.01/τ for losses of 1 to 4 (FedTorch: 0.1 as γ).
        floor: no λ_k falls below it, as in FedTorch.
        batch: training examples on which a site measures f_k.
    """

    summary = "DRFA: sites are drawn by weights that grow with their losses, for the worst mixture of sites."
    source = "Deng et al. 2020; algorithms.md 7.6, 10"
    needs: Literal["sum", "individual"] = "sum"
    reads_sum = True
    auxiliary_sums = (SNAPSHOT, DRAWN)

    def __init__(
        self,
        m: Annotated[int, Field(ge=1)] | None = None,
        step: Annotated[float, Field(ge=0)] = 1e-2,
        floor: Annotated[float, Field(ge=0, lt=1)] = 1e-3,
        batch: Annotated[int, Field(ge=1)] = 32,
    ) -> None:
        super().__init__("uniform")
        if m is not None and not m >= 1:
            raise ValueError(f"m is {m}; expected 1 or more.")
        if not 0 <= step < math.inf:
            raise ValueError(f"step is {step}; expected 0 or more.")
        if not 0 <= floor < 1:
            raise ValueError(f"floor is {floor}; expected 0 or more and less than 1.")
        if not batch >= 1:
            raise ValueError(f"batch is {batch}; expected 1 or more.")
        self.m, self.step, self.floor, self.batch = m, step, floor, batch
        self.factor_clip = math.log(m or MOST_DRAWS)
        self.weights_of_sites: dict[str, float] = {}
        self._drawn: Counter[str] = Counter()
        self._share, self._probed_sites = 1.0, list[str]()
        self._losses: dict[str, float] = {}
        self._snapshot: State | None = None

    # ---- before a round ----------------------------------------------------------------------------------

    def sample_clients(
        self,
        round_number: int,
        seed: int,
        examples: Mapping[str, int],
        eligible: Sequence[str],
        min_clients: int = 1,
    ) -> list[str]:
        if set(self.weights_of_sites) != set(examples):
            whole = sum(examples.values())
            self.weights_of_sites = {site: n / whole for site, n in sorted(examples.items())}
        there = sorted(eligible)
        random = np.random.default_rng(derived_seed(seed, "drfa", round_number))
        odds = np.array([self.weights_of_sites[site] for site in there])
        count = self.m or min(len(there), MOST_DRAWS)
        self._drawn = Counter(random.choice(there, count, p=odds / odds.sum()).tolist())
        self._add_others(there, odds, random, min_clients)
        self._share = 1 - float(random.random())
        probed = random.choice(there, min(count, len(there)), replace=False)
        self._probed_sites = sorted(probed.tolist())
        return sorted(self._drawn)

    def _add_others(
        self, there: list[str], odds: np.ndarray, random: np.random.Generator, least: int
    ) -> None:
        """Draws on among the sites that were not drawn, where too few different ones were."""
        while len(self._drawn) < min(least, len(there)):
            left = np.array([site not in self._drawn for site in there]) * odds
            self._drawn[str(random.choice(there, p=left / left.sum()))] = 1

    def client_terms(self) -> RoundHints:
        return RoundHints(snapshot=SnapshotHint(share=self._share, drawn=dict(self._drawn)))

    # ---- the round and its second exchange ---------------------------------------------------------------

    def begin(self, global_state: State) -> None:
        super().begin(global_state)
        self._losses, self._snapshot = {}, None

    def weight(self, site: str, update: Update) -> float:
        """How often the site was drawn: what the server knows, not what the site says."""
        return float(self._drawn.get(site, 1))

    def update_server_state(self, totals: State, sites: int) -> State:
        if DRAWN in totals:
            drawn = float(totals[DRAWN])
            change = {n: totals[SNAPSHOT + n] / drawn for n in self._global if SNAPSHOT + n in totals}
            self._snapshot = moved(self._global, change)
        return {name: value for name, value in totals.items() if not name.startswith(self.auxiliary_sums)}

    def probe(self) -> Probe | None:
        if self._snapshot is None or not self._probed_sites:
            return None
        return Probe(self._snapshot, self._probed_sites, self.batch)

    def receive_losses(self, losses: Mapping[str, float]) -> None:
        """A site without a finite loss of 0 or more says nothing about λ."""
        self._snapshot = None
        self._losses = {s: x for s, x in sorted(losses.items()) if math.isfinite(x) and x >= 0}
        names = list(self.weights_of_sites)
        scale = self.step * len(names) / max(len(self._losses), 1)
        moved_ = [self.weights_of_sites[site] + scale * self._losses.get(site, 0.0) for site in names]
        kept = np.maximum(onto_simplex(np.array(moved_)), self.floor)
        self.weights_of_sites = dict(zip(names, (kept / kept.sum()).tolist(), strict=True))

    def report(self) -> dict[str, Any]:
        """`weights`; `lambda`: λ after the round; `drawn`; `share` of the snapshot; `probed`: f_k."""
        found = {"lambda": dict(self.weights_of_sites), "drawn": dict(self._drawn)}
        return super().report() | found | {"share": self._share, "probed": dict(self._losses)}

    def state_dict(self) -> dict[str, Any]:
        return {"lambda": dict(self.weights_of_sites)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights_of_sites = dict(state["lambda"])
