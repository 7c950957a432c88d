# SPDX-License-Identifier: Apache-2.0
"""What DDCS is compared with: uniform, by importance, and FedCS (algorithms.md 7.20, 7.21; DD-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from medflare.errors import ConfigError
from medflare.selection.latency import Timing
from medflare.selection.sampling import Draw, draw_sites
from medflare.selection.selectors import Known, Selector


@dataclass
class Uniform(Selector):
    """q = 1/K (7.20)."""

    draws: int = 5

    def choose(
        self,
        number: int,
        shares: Mapping[str, float],
        known: Known,
        random: np.random.Generator,
        least: int = 1,
    ) -> Draw:
        return draw_sites(dict.fromkeys(shares, 1 / len(shares)), shares, self.draws, random, least)


@dataclass
class Importance(Selector):
    """q ∝ d_i ‖Δ_i‖, which makes the update's variance least, above a floor φ d_i (DD-11).

    A site of which no update was seen counts with the mean norm of the others.
    """

    draws: int = 5
    floor: float = 0.2

    def choose(
        self,
        number: int,
        shares: Mapping[str, float],
        known: Known,
        random: np.random.Generator,
        least: int = 1,
    ) -> Draw:
        seen = [known.norms[site] for site in shares if known.norms.get(site, 0) > 0]
        typical = float(np.mean(seen)) if seen else 1.0
        wanted = {site: d * (known.norms.get(site) or typical) for site, d in shares.items()}
        whole = sum(wanted.values())
        odds = {s: self.floor * d + (1 - self.floor) * wanted[s] / whole for s, d in shares.items()}
        return draw_sites(odds, shares, self.draws, random, least)


@dataclass
class FedCS(Selector):
    """As many sites as fit before a deadline, added by least added time (Nishio and Yonetani 2019; 7.21).

    Biased to fast sites: those too slow never train. Weights are n_k over the chosen ones.

    Args:
        deadline: seconds of a round.
        sequential: sites send one after the other, as in the paper's cell; otherwise all at once.
    """

    deadline: float
    sequential: bool = False

    def choose(
        self,
        number: int,
        shares: Mapping[str, float],
        known: Known,
        random: np.random.Generator,
        least: int = 1,
    ) -> Draw:
        times = {site: self._parts(site, shares, known) for site in shares}
        chosen, elapsed = list[str](), 0.0
        while len(chosen) < len(times):
            ends = {s: self._end(elapsed, timing) for s, timing in times.items() if s not in chosen}
            site = min(sorted(ends), key=lambda s: ends[s])
            if ends[site] > self.deadline:
                break
            chosen.append(site)
            elapsed = ends[site]
        if len(chosen) < max(least, 1):
            raise ConfigError(self._too_few(times, len(chosen), max(least, 1)))
        whole = sum(shares[site] for site in chosen)
        weights = {site: shares[site] / whole for site in chosen}
        odds = {site: float(site in chosen) for site in shares}
        return Draw(counts=dict.fromkeys(chosen, 1), weights=weights, odds=odds)

    def _parts(self, site: str, shares: Mapping[str, float], known: Known) -> Timing:
        """What a site took so far; a site that was never seen is taken to compute as long as is typical."""
        return known.latencies.parts(site) or Timing(known.latencies.estimates(shares)[site], 0.0)

    def _end(self, elapsed: float, timing: Timing) -> float:
        """When the round is over if a site joins those that are done after `elapsed` seconds."""
        if self.sequential:
            return max(elapsed, timing.compute) + timing.transfer
        return max(elapsed, timing.total)

    def _too_few(self, times: Mapping[str, Timing], found: int, least: int) -> str:
        needed = sorted(timing.total for timing in times.values())[min(least, len(times)) - 1]
        return (
            f"client selection: {found} of {len(times)} sites fit into the deadline of {self.deadline:g} s, "
            f"and {least} must. Set deadline to {np.ceil(needed):g} s or more."
        )
