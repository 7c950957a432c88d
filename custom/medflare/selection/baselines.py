# SPDX-License-Identifier: Apache-2.0
"""Selectors that DDCS is compared with: uniform, by importance (DD-11), FedCS (Nishio and Yonetani 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from medflare.core.timing import Timing
from medflare.selection.sampling import Sample
from medflare.selection.selectors import ProbabilitySelector, Selector, SiteStatistics, require_sites


@dataclass
class UniformSelector(ProbabilitySelector):
    """q = 1/K."""

    def probabilities(
        self, round_number: int, shares: Mapping[str, float], known: SiteStatistics
    ) -> Mapping[str, float]:
        return dict.fromkeys(shares, 1 / len(shares))


@dataclass
class ImportanceSelector(ProbabilitySelector):
    """q ∝ d_i ‖Δ_i‖, which makes the update's variance least, above a floor φ d_i (DD-11).

    A site of which no update was seen counts with the mean norm of the others.
    """

    floor: float = 0.2

    def probabilities(
        self, round_number: int, shares: Mapping[str, float], known: SiteStatistics
    ) -> Mapping[str, float]:
        norms = [known.norms[site] for site in shares if known.norms.get(site, 0) > 0]
        typical = float(np.mean(norms)) if norms else 1.0
        wanted = {site: d * (known.norms.get(site) or typical) for site, d in shares.items()}
        total = sum(wanted.values())
        return {s: self.floor * d + (1 - self.floor) * wanted[s] / total for s, d in shares.items()}


@dataclass
class FedCSSelector(Selector):
    """As many sites as fit before a deadline, added by least added time (Nishio and Yonetani 2019).

    Biased to fast sites: those too slow never train. Weights are n_k over the chosen ones. Where fewer fit
    than must train, the fastest train all the same: no site's time would ever be seen again otherwise.

    Args:
        deadline: seconds of a round.
        sequential: sites send one after the other, as in the paper's cell; otherwise all at once.
        over: the message of a round in which too few sites met the deadline; empty where enough did.
    """

    deadline: float
    sequential: bool = False
    over: str = ""

    def choose(
        self,
        round_number: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
        min_clients: int = 1,
    ) -> Sample:
        require_sites(shares, min_clients)
        times = {site: self._parts(site, shares, known) for site in shares}
        ends = self._ends(times)
        fitting = [site for site, end in ends.items() if end <= self.deadline]
        chosen = list(ends)[: max(len(fitting), min_clients, 1)]
        self.over = "" if len(chosen) == len(fitting) else self._too_few(ends, len(fitting), chosen)
        total = sum(shares[site] for site in chosen)
        weights = {site: shares[site] / total for site in chosen}
        probabilities = {site: float(site in chosen) for site in shares}
        return Sample(counts=dict.fromkeys(chosen, 1), weights=weights, probabilities=probabilities)

    def _parts(self, site: str, shares: Mapping[str, float], known: SiteStatistics) -> Timing:
        """Return what a site took so far; a site that was never seen counts as computing a typical time."""
        return known.latencies.parts(site) or Timing(known.latencies.estimates(shares)[site], 0.0)

    def _ends(self, times: Mapping[str, Timing]) -> dict[str, float]:
        """Return, for each site, the time at which it and all sites added before it have finished."""
        ends, elapsed = dict[str, float](), 0.0
        while len(ends) < len(times):
            following = {s: self._end(elapsed, timing) for s, timing in times.items() if s not in ends}
            site = min(sorted(following), key=lambda s: following[s])
            ends[site] = elapsed = following[site]
        return ends

    def _end(self, elapsed: float, timing: Timing) -> float:
        """Return when the round ends if a site joins those that are done after `elapsed` seconds."""
        if self.sequential:
            return max(elapsed, timing.compute) + timing.transfer
        return max(elapsed, timing.total)

    def _too_few(self, ends: Mapping[str, float], in_time: int, chosen: list[str]) -> str:
        return (
            f"{in_time} of {len(ends)} sites fit into the deadline of {self.deadline:g} s, and {len(chosen)} "
            f"must: the fastest train all the same ({', '.join(chosen)}). Set deadline to "
            f"{np.ceil(ends[chosen[-1]]):g} s or more."
        )
