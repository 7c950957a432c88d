# SPDX-License-Identifier: Apache-2.0
"""What a way to choose who trains is, and DDCS (algorithms.md 6.2; DD-9)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from medflare.selection.divergence import distance_matrix
from medflare.selection.latency import Latencies
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

    def state_dict(self) -> dict[str, Any]:
        """What the choice of later rounds depends on, JSON values: saved each round, read by nothing yet."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most selectors keep nothing
        """Puts back what `state_dict` returned."""


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
    planned_for: int = -1
    times: dict[str, float] = field(default_factory=dict)
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
        self._plan(number // self.period, known.latencies.estimates(shares))
        facts = (self.times, sorted(shares.items()), sketches)
        if self.solution is None or facts != self._solved:
            self.solution = solve(self.problem(shares, known, self.times), self.on_infeasible)
            self._solved = facts
        odds = with_age(self.solution.odds, known.ages, self.age_bonus)
        return draw_sites(odds, shares, self.draws, random, least)

    def _plan(self, period: int, times: Mapping[str, float]) -> None:
        """Latencies are those of the period's first round; a site that comes later brings its own."""
        if self.planned_for != period:
            self.planned_for, self.times = period, {}
        self.times = {**times, **self.times}

    def state_dict(self) -> dict[str, Any]:
        """What a run would need to go on within a period as if it had not stopped; no controller resumes."""
        return {"planned_for": self.planned_for, "times": dict(self.times)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.planned_for, self.times = state["planned_for"], dict(state["times"])

    def problem(
        self, shares: Mapping[str, float], known: Known, times: Mapping[str, float] | None = None
    ) -> Problem:
        """What there is to solve with what is known now. times: t_i, if others than the estimates of now."""
        sites = tuple(sorted(shares))
        times = known.latencies.estimates(sites) if times is None else times
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
