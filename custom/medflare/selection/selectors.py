# SPDX-License-Identifier: Apache-2.0
"""Contract of client selectors, and the selector of DDCS (DD-9)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from medflare.core.errors import ConfigError
from medflare.core.sketch import Sketch
from medflare.knowledge.divergence import distance_matrix
from medflare.knowledge.private_intersection import exact_distances
from medflare.selection.latency import Latencies
from medflare.selection.objective import Matrix
from medflare.selection.optimiser import OnInfeasible, solve
from medflare.selection.problem import PairsOf, Problem, Solution
from medflare.selection.sampling import Sample, sample_sites, with_staleness

UNPLANNED = -1
"""In place of a period: the next round plans anew."""


@dataclass(kw_only=True)
class SiteStatistics:
    """Observations of the sites that the server selects by.

    Attributes:
        latencies: as observed so far; sketches: of the sites that sent one.
        sizes, shared: in place of sketches, triples of the sites' graphs and of what pairs of sites share.
        staleness: rounds since a site trained; norms: ‖Δ_i‖ of each site's last update.
        losses: of each site's last training, where a rule reads them.
    """

    latencies: Latencies = field(default_factory=Latencies)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    staleness: dict[str, int] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    def distances(self, sites: Sequence[str]) -> Matrix | None:
        """Return D (N, N) in the order of `sites`, as `divergence.distance_matrix`; None if unknown."""
        empty = 0 in self.sizes.values() and len(self.sizes) > 1
        if self.shared or empty:
            return exact_distances(self.sizes, self.shared, sites)
        return distance_matrix(self.sketches, sites) if set(self.sketches) & set(sites) else None


class Selector(ABC):
    """Chooses the sites of each round."""

    @abstractmethod
    def choose(
        self,
        round_number: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
        min_clients: int = 1,
    ) -> Sample:
        """Return the sample of clients that train in a round.

        Args:
            shares: d_i of the sites that can be asked and have data; they sum to 1.
            known: observations of the sites so far.
            min_clients: least number of different sites in the sample.

        Raises:
            ConfigError: so many different sites cannot be sampled.
        """

    def report_timeout(self) -> None:  # noqa: B027 - most selectors look at latencies in every round
        """React to a sampled site that gave no update that counts; its latency is known already."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the choice of later rounds depends on, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most selectors keep nothing
        """Restore what `state_dict` returned."""


def require_sites(shares: Mapping[str, float], min_clients: int) -> None:
    """Raise ConfigError where fewer sites have data than must train."""
    if len(shares) < min_clients:
        raise ConfigError(
            f"client selection: {len(shares)} sites have data, and {min_clients} must train; start more."
        )


@dataclass
class ProbabilitySelector(Selector):
    """Selector that draws with replacement from probabilities.

    Args:
        draws: S, draws of a round.
        unbiased: as in `sampling.sample_sites`.
    """

    draws: int = 5
    unbiased: bool = True

    @abstractmethod
    def probabilities(
        self, round_number: int, shares: Mapping[str, float], known: SiteStatistics
    ) -> Mapping[str, float]:
        """Return q_i of the sites of `shares`; arguments as in `choose`."""

    def choose(
        self,
        round_number: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
        min_clients: int = 1,
    ) -> Sample:
        probabilities = self.probabilities(round_number, shares, known)
        return sample_sites(probabilities, shares, self.draws, random, min_clients, self.unbiased)


@dataclass
class DdcsSelector(ProbabilitySelector):
    """Draws from the q that makes rounds fast within a limit on divergence (Zhang et al. 2025).

    Args:
        period: P; q is worked out again every P rounds, and whenever other sites can be asked or a sketch is
            new (DD-9). While some site's latency was not seen yet, in every round.
        age_bonus: β of `sampling.with_staleness`.
        others: as in `Problem`.
    """

    floor: float = 0.2
    epsilon: float | None = None
    most_variance: float | None = None
    variance_rounds: float = 0.0
    age_bonus: float = 0.1
    period: int = 5
    on_infeasible: OnInfeasible = "relax"
    pairs_of: PairsOf = "draws"
    solution: Solution | None = None
    planned_for: int = UNPLANNED
    times: dict[str, float] = field(default_factory=dict)
    _solved: object = None

    def probabilities(
        self, round_number: int, shares: Mapping[str, float], known: SiteStatistics
    ) -> Mapping[str, float]:
        sketches = [(site, known.sketches[site].values.tobytes()) for site in sorted(known.sketches)]
        self._plan(round_number // self.period, shares, known.latencies)
        facts = (self.times, sorted(shares.items()), sketches, known.sizes, known.shared)
        if self.solution is None or facts != self._solved:
            self.solution = solve(self.problem(shares, known, self.times), self.on_infeasible)
            self._solved = facts
        return with_staleness(self.solution.probabilities, known.staleness, self.age_bonus)

    def _plan(self, period: int, sites: Collection[str], latencies: Latencies) -> None:
        """Fix the latencies to plan with: those of the period's first round, and of sites that join later.

        While some site was never observed they are the present ones, because a typical latency only stands in
        for its own; the first round in which all were observed then counts for the rest of its period.
        """
        all_timed = all(latencies.parts(site) is not None for site in sites)
        if self.planned_for != period or not all_timed:
            self.times = {}
        self.times = {**latencies.estimates(sites), **self.times}
        self.planned_for = period if all_timed else UNPLANNED

    def report_timeout(self) -> None:
        """Plan anew at once: a broken site would keep the probability of a fast one."""
        self.planned_for = UNPLANNED

    def state_dict(self) -> dict[str, Any]:
        """Return the plan of the current period, as JSON values."""
        return {"planned_for": self.planned_for, "times": dict(self.times)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.planned_for, self.times = state["planned_for"], dict(state["times"])

    def problem(
        self, shares: Mapping[str, float], known: SiteStatistics, times: Mapping[str, float] | None = None
    ) -> Problem:
        """Return the problem to solve with the present observations.

        Args:
            shares: d_i of the sites that can be sampled; known: latencies and distances of the sites.
            times: t_i in place of the present estimates, seconds.
        """
        sites = tuple(sorted(shares))
        times = known.latencies.estimates(sites) if times is None else times
        return Problem(
            sites=sites,
            latencies=np.array([times[site] for site in sites]),
            shares=np.array([shares[site] for site in sites]),
            distances=known.distances(sites),
            draws=self.draws,
            floor=self.floor,
            epsilon=self.epsilon,
            most_variance=self.most_variance,
            variance_rounds=self.variance_rounds,
            pairs_of=self.pairs_of,
        )
