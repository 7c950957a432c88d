# SPDX-License-Identifier: Apache-2.0
"""DRFA: sites on which the model is bad are drawn more often (Deng et al. 2020)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from medflare.aggregation.base import RuleFacts
from medflare.aggregation.capabilities import (
    AllowsSiteFactors,
    AsksClientTerms,
    Probe,
    ProbesLosses,
    SamplesClients,
    UsesAuxiliarySums,
)
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.data_order import derived_seed
from medflare.core.hints import ImportanceHint, RoundHints, SnapshotHint
from medflare.core.tensors import State, apply_delta
from medflare.core.update import Update

SNAPSHOT, DRAWN, WEIGHT = "snapshot.", "drawn", "importance.weight"
MOST_RATIO = 10.0
"""A loss counts for at most so many times the median of those measured: no site draws all by one number."""
MAX_SAMPLES = 128
"""In a round, where a job names no m: a site's own weight must have a bound before it can be masked."""


def onto_simplex(values: np.ndarray) -> np.ndarray:
    """Return the point of {x ≥ 0, Σ x = 1} nearest in the Euclidean norm (Duchi et al. 2008). values: (K)."""
    values = values - values.max()  # the point is the same; beside an enormous value digits are left
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(values) + 1)
    shift = excess[np.flatnonzero(falling > excess)[-1]]
    nearest: np.ndarray = np.maximum(values - shift, 0)
    return nearest


class Drfa(MeanRule, SamplesClients, AsksClientTerms, UsesAuxiliarySums, ProbesLosses, AllowsSiteFactors):
    """min over θ of max over λ of Σ λ_k f_k(θ): m sites drawn ~ λ with replacement, and their uniform mean.

    λ starts at n_k/N. After each round m sites, drawn uniformly, tell the loss f_k of the mean of all
    snapshots on one batch of their training examples: v_k = (K/m) f_k, λ⁺ = Proj(λ + γ τ v). With
    `snapshot: end` they measure the round's result in place of it, which is the snapshot after the last step.
    """

    facts = RuleFacts(
        summary="DRFA: sites are drawn by weights that grow with their losses, "
        "for the worst mixture of sites.",
        source="Deng et al. 2020",
        reads_sum=True,
    )
    auxiliary_sums = (SNAPSHOT, DRAWN, WEIGHT)
    assigned_sums = (WEIGHT,)

    class Settings(NormClipSettings):
        m: Annotated[int, Field(ge=1)] | None = None
        """how often a site is drawn in a round; by default as often as there are sites."""
        step: float = Field(default=1e-2, ge=0)
        """γ τ, which moves λ: 0.01 is the γ = 0.01/τ for losses of 1 to 4 (FedTorch: 0.1 as γ)."""
        floor: float = Field(default=1e-3, ge=0, lt=1)
        """no λ_k falls below it, as in FedTorch."""
        snapshot: Literal["random", "end"] = "random"
        """whose loss is measured: of the mean of the sites' models after a step drawn anew in each round, as
        in the paper, which costs a second model's bytes up; or of the round's result. Under masking it is
        `end`, because no site can check a state that it is not sent to train on."""
        batch: int = Field(default=32, ge=1)
        """training examples on which a site measures f_k."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_weighting("uniform")
        self.factor_clip = math.log(self.settings.m or MAX_SAMPLES)
        self.probes_result = self.settings.snapshot == "end"
        self.probabilities: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._share, self._probed_sites = 1.0, list[str]()
        self._losses: dict[str, float] = {}
        self._last: dict[str, float] = {}
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
        if set(self.probabilities) != set(examples):
            total = sum(examples.values())
            self.probabilities = {site: n / total for site, n in sorted(examples.items())}
        candidates = sorted(eligible)
        random = np.random.default_rng(derived_seed(seed, "drfa", round_number))
        chances = np.array([self.probabilities[site] for site in candidates])
        count = self.settings.m or min(len(candidates), MAX_SAMPLES)
        self._counts = Counter(random.choice(candidates, count, p=chances / chances.sum()).tolist())
        self._sample_others(candidates, chances, random, min_clients)
        self._share = 1 - float(random.random())
        probed = random.choice(candidates, min(count, len(candidates)), replace=False)
        self._probed_sites = sorted(probed.tolist())
        return sorted(self._counts)

    def _sample_others(
        self, candidates: list[str], chances: np.ndarray, random: np.random.Generator, min_clients: int
    ) -> None:
        """Sample further clients where too few different ones were sampled."""
        while len(self._counts) < min(min_clients, len(candidates)):
            left = np.array([site not in self._counts for site in candidates]) * chances
            self._counts[str(random.choice(candidates, p=left / left.sum()))] = 1

    def client_terms(self) -> RoundHints:
        if self.probes_result:  # sites multiply their updates, and send no snapshot
            drawn = {site: float(count) for site, count in self._counts.items()}
            largest = max(drawn.values(), default=1.0)
            return RoundHints(importance=ImportanceHint(weights=drawn, largest=largest))
        return RoundHints(snapshot=SnapshotHint(share=self._share, drawn=dict(self._counts)))

    # ---- the round and its second exchange ---------------------------------------------------------------

    def begin(self, global_state: State) -> None:
        super().begin(global_state)
        self._losses, self._snapshot = {}, None

    def weight(self, site: str, update: Update) -> float:
        """Return how often the site was sampled: what the server knows, not what the site reports."""
        return float(self._counts.get(site, 1))

    def update_server_state(self, totals: State, sites: int) -> State:
        if DRAWN in totals:
            count = float(totals[DRAWN])
            change = {n: totals[SNAPSHOT + n] / count for n in self._global if SNAPSHOT + n in totals}
            self._snapshot = apply_delta(self._global, change)
        return {name: value for name, value in totals.items() if not name.startswith(self.auxiliary_sums)}

    def probe(self) -> Probe | None:
        if not self._probed_sites or (self._snapshot is None and not self.probes_result):
            return None
        return Probe(self._snapshot, self._probed_sites, self.settings.batch)

    def receive_losses(self, losses: Mapping[str, float]) -> None:
        """Move λ by the measured losses; a site without a finite loss of 0 or more does not move it.

        One far above the lower median of all sites' last losses counts for MOST_RATIO times that: losses are
        the sites' own word.
        """
        self._snapshot = None
        measured = {s: x for s, x in sorted(losses.items()) if math.isfinite(x) and x >= 0}
        self._last |= measured
        most = MOST_RATIO * median_low(self._last.values()) if self._last else 0.0
        self._losses = {site: min(loss, most or math.inf) for site, loss in measured.items()}
        names = list(self.probabilities)
        scale = self.settings.step * len(names) / max(len(self._losses), 1)
        raised = [self.probabilities[site] + scale * self._losses.get(site, 0.0) for site in names]
        kept = np.maximum(onto_simplex(np.array(raised)), self.settings.floor)
        self.probabilities = dict(zip(names, (kept / kept.sum()).tolist(), strict=True))

    def report(self) -> dict[str, Any]:
        """Return `weights`; `lambda`: λ after the round; `drawn`; `share` of the snapshot; `probed`: f_k."""
        sampling = {"lambda": dict(self.probabilities), "drawn": dict(self._counts)}
        return super().report() | sampling | {"share": self._share, "probed": dict(self._losses)}

    def state_dict(self) -> dict[str, Any]:
        return {"lambda": dict(self.probabilities), "losses": dict(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.probabilities, self._last = dict(state["lambda"]), dict(state.get("losses", {}))
