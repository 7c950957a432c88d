# SPDX-License-Identifier: Apache-2.0
"""Ways to choose who trains, with one interface: DDCS and baselines (6.2, 7.20, 7.21; DD-9, DD-11)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from medflare.errors import ConfigError
from medflare.selection.divergence import distance_matrix
from medflare.selection.latency import Latencies, Timing
from medflare.selection.optimiser import OnInfeasible, solve
from medflare.selection.problem import Problem, Solution
from medflare.selection.sampling import Draw, draw_sites, with_age
from medflare.selection.sketches import Sketch


@dataclass(kw_only=True)
class Known:
    """What the server knows of the sites when it chooses.

    Attributes:
        latencies: as observed so far; sketches: of the sites that sent one.
        ages: rounds since a site trained; norms: ‖Δ_i‖ of each site's last update.
    """

    latencies: Latencies = field(default_factory=Latencies)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)


class Selector(ABC):
    """Chooses the sites of each round."""

    @abstractmethod
    def choose(
        self,
        number: int,
        shares: Mapping[str, float],
        known: Known,
        random: np.random.Generator,
        least: int = 1,
    ) -> Draw:
        """Who trains in round `number`.

        Args:
            shares: d_i of the sites that can be asked and have data; they sum to 1.
            least: so many different sites; ConfigError where that cannot be.
        """


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


@dataclass
class Ddcs(Selector):
    """Draws from the q that makes rounds fast within a limit on divergence (6.2, 6.3).

    Args:
        period: P; q is worked out again every P rounds, and whenever other sites can be asked or a sketch is
            new (DD-9).
        age_bonus: β of `sampling.with_age`.
        others: as in `Problem`.
    """

    draws: int = 5
    floor: float = 0.2
    epsilon: float | None = None
    most_variance: float | None = None
    variance_rounds: float = 0.0
    age_bonus: float = 0.1
    period: int = 5
    on_infeasible: OnInfeasible = "relax"
    solution: Solution | None = None
    _solved: object = None

    def choose(
        self,
        number: int,
        shares: Mapping[str, float],
        known: Known,
        random: np.random.Generator,
        least: int = 1,
    ) -> Draw:
        sketches = [(site, known.sketches[site].values.tobytes()) for site in sorted(known.sketches)]
        facts = (number // self.period, sorted(shares.items()), sketches)
        if self.solution is None or facts != self._solved:
            self.solution = solve(self.problem(shares, known), self.on_infeasible)
            self._solved = facts
        odds = with_age(self.solution.odds, known.ages, self.age_bonus)
        return draw_sites(odds, shares, self.draws, random, least)

    def problem(self, shares: Mapping[str, float], known: Known) -> Problem:
        """What there is to solve with what is known now."""
        sites = tuple(sorted(shares))
        times = known.latencies.estimates(sites)
        any_sketch = any(site in known.sketches for site in sites)
        return Problem(
            sites=sites,
            latencies=np.array([times[site] for site in sites]),
            shares=np.array([shares[site] for site in sites]),
            distances=distance_matrix(known.sketches, sites) if any_sketch else None,
            draws=self.draws,
            floor=self.floor,
            epsilon=self.epsilon,
            most_variance=self.most_variance,
            variance_rounds=self.variance_rounds,
        )
