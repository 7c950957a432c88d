# SPDX-License-Identifier: Apache-2.0
"""DDCS, and the ways to select sites it is compared with (Zhang et al. 2025; algorithms.md 6, 7.20, 7.21)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from medflare.aggregation.capabilities import NeedsExactSizes, NeedsSketches
from medflare.aggregation.selecting import MOST_DRAWS, PRODUCTS, Mode, Selecting
from medflare.core.hints import ProximalHint, RoundHints
from medflare.knowledge.sketches import Sketch
from medflare.selection.baselines import FedCS as FedCSSelector
from medflare.selection.baselines import Importance, Uniform
from medflare.selection.latency import Latencies
from medflare.selection.problem import PairsOf
from medflare.selection.selectors import Ddcs as DdcsSelector

Rank = Annotated[int, Field(ge=1)]
Draws = Annotated[int, Field(ge=1, le=MOST_DRAWS)]


def _require(**settings: tuple[Any, bool, str]) -> None:
    """ValueError that names the first setting that does not hold, its value and what was expected."""
    for name, (value, holds, expected) in settings.items():
        if not holds:
            raise ValueError(f"{name} is {value}; expected {expected}.")


def _check_draws(draws: int) -> None:
    _require(draws=(draws, 1 <= draws <= MOST_DRAWS, f"1 to {MOST_DRAWS}"))


class Ddcs(Selecting, NeedsSketches, NeedsExactSizes):
    """S draws from the q that makes the expected slowest site fast while the drawn data stay alike.

    Args:
        draws: S, draws with replacement in a round; a site drawn twice trains once.
        floor: φ; q_i ≥ φ d_i, which bounds every importance weight by 1/φ.
        epsilon: ε, the largest mean distance of two draws' knowledge graphs; null for what q = d attains.
        pairs_of: ε is on pairs of draws, of which a site drawn twice counts as 0, or on pairs of different
            sites, where only whose data are alike makes the distance small.
        most_variance: the largest Σ d_i²/q_i, which is 1 for q = d; null for no cap.
        variance_rounds: ρ; counts a round's seconds 1 + ρ (Σ d_i²/q_i − 1) times, as variance costs rounds.
        age_bonus: β; share of the odds that goes to sites by the rounds they have waited.
        period: P; the odds are worked out again every P rounds.
        on_infeasible: where no odds keep ε, go on with the least divergent ones, or end the run.
        quantile: plan with this quantile of a site's latencies; null for exponential means.
        smoothing: weight of the newest round in those means.
        mode: of LoRA pairs, the step of both factors' differences, or of their products, which is exact.
        most_rank: of mode product_restart, rank above which merged factors are approximated; null for none.
        distances: between sites' knowledge graphs, from sketches, or from exact sizes by private set
            intersection, once before round 1 and of sites whose policy.knowledge_exact allows it.
    """

    summary = "DDCS: draws sites by latency, within a limit on how far their knowledge graphs lie apart."
    source = "Zhang et al. 2025 (paper 004); algorithms.md 6, 10; DD-1 to DD-10"
    stack_with = PRODUCTS

    def __init__(
        self,
        draws: Draws = 5,
        floor: Annotated[float, Field(gt=0, le=1)] = 0.2,
        epsilon: Annotated[float, Field(ge=0, le=1)] | None = None,
        most_variance: Annotated[float, Field(ge=1)] | None = None,
        variance_rounds: Annotated[float, Field(ge=0)] = 0.0,
        age_bonus: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        period: Annotated[int, Field(ge=1)] = 5,
        on_infeasible: Literal["relax", "error"] = "relax",
        quantile: Annotated[float, Field(ge=0, le=1)] | None = None,
        smoothing: Annotated[float, Field(gt=0, le=1)] = 0.3,
        mode: Mode = "factor_delta",
        most_rank: Rank | None = None,
        pairs_of: PairsOf = "draws",
        distances: Literal["sketches", "exact"] = "sketches",
    ) -> None:
        _check_draws(draws)
        _require(
            floor=(floor, 0 < floor <= 1, "more than 0 and at most 1"),
            epsilon=(epsilon, epsilon is None or 0 <= epsilon <= 1, "0 to 1"),
            most_variance=(most_variance, most_variance is None or most_variance >= 1, "1 or more"),
            variance_rounds=(variance_rounds, 0 <= variance_rounds < math.inf, "0 or more"),
            age_bonus=(age_bonus, 0 <= age_bonus < 1, "0 or more and less than 1"),
            period=(period, period >= 1, "1 or more"),
            on_infeasible=(on_infeasible, on_infeasible in ("relax", "error"), "'relax' or 'error'"),
            quantile=(quantile, quantile is None or 0 <= quantile <= 1, "0 to 1"),
            distances=(distances, distances in ("sketches", "exact"), "'sketches' or 'exact'"),
            pairs_of=(pairs_of, pairs_of in ("draws", "sites"), "'draws' or 'sites'"),
            smoothing=(smoothing, 0 < smoothing <= 1, "more than 0 and at most 1"),
        )
        self.chosen = DdcsSelector(
            draws=draws,
            floor=floor,
            epsilon=epsilon,
            most_variance=most_variance,
            variance_rounds=variance_rounds,
            age_bonus=age_bonus,
            period=period,
            on_infeasible=on_infeasible,
            pairs_of=pairs_of,
        )
        super().__init__(self.chosen, Latencies(smoothing, quantile), mode, most_rank)
        self.exact, self.sketch_period = distances == "exact", period

    def disabled_capabilities(self) -> tuple[type, ...]:
        return (NeedsSketches,) if self.exact else (NeedsExactSizes,)

    def set_sketch(self, site: str, sketch: Sketch | None) -> None:
        """A first sketch, a newer one, or None where there is none any more; the odds change with it."""
        if sketch is None:
            self.known.sketches.pop(site, None)
        else:
            self.known.sketches[site] = sketch

    def set_exact_sizes(self, sizes: Mapping[str, int], shared: Mapping[tuple[str, str], int]) -> None:
        """Exact sizes: of the sites' graphs, and of what pairs of them share."""
        self.known.sizes, self.known.shared = dict(sizes), dict(shared)

    def report(self) -> dict[str, Any]:
        """As `Selecting`, and `solution`: the odds before the age bonus and what they bring."""
        solution = self.chosen.solution
        return super().report() | ({"solution": solution.to_json()} if solution else {})


class UniformSelection(Selecting):
    """q = 1/K, and importance weights.

    Args:
        draws: S, draws with replacement in a round.
        mode: of LoRA pairs, the step of both factors' differences, or of their products, which is exact.
        most_rank: of mode product_restart, rank above which merged factors are approximated; null for none.
        mu: μ of FedProx, which holds drawn sites near the state they received; 0 for none (7.2).
    """

    summary = "Uniform selection: S sites drawn alike in each round, weighed so that no site is favoured."
    source = "McMahan et al. 2017; algorithms.md 7.20"
    stack_with = PRODUCTS

    def __init__(
        self,
        draws: Draws = 5,
        mode: Mode = "factor_delta",
        most_rank: Rank | None = None,
        mu: Annotated[float, Field(ge=0)] = 0.0,
    ) -> None:
        _check_draws(draws)
        _require(mu=(mu, 0 <= mu < math.inf, "0 or more"))
        super().__init__(Uniform(draws=draws), Latencies(), mode, most_rank)
        self.mu = mu

    def client_terms(self) -> RoundHints:
        held = RoundHints(proximal=ProximalHint(mu=self.mu)) if self.mu else RoundHints()
        return super().client_terms() | held


class ImportanceSampling(Selecting):
    """q ∝ d_i ‖Δ_i‖ above a floor, which makes the variance of the update least.

    Args:
        draws: S, draws with replacement in a round.
        floor: φ; q_i ≥ φ d_i.
    """

    summary = "Importance sampling: sites are drawn by their data and the size of their last update."
    source = "Luo et al. 2022; algorithms.md 6.4; DD-11"
    needs: Literal["sum", "individual"] = "individual"
    instead = "rule 'ddcs' or 'uniform_selection', which need a sum alone"

    def __init__(self, draws: Draws = 5, floor: Annotated[float, Field(gt=0, le=1)] = 0.2) -> None:
        _check_draws(draws)
        _require(floor=(floor, 0 < floor <= 1, "more than 0 and at most 1"))
        super().__init__(Importance(draws=draws, floor=floor), Latencies())


class FedCS(Selecting):
    """As many sites as fit before a deadline, weighed by examples; slow sites never train.

    Args:
        deadline: seconds of a round.
        sequential: sites send one after the other; otherwise all at once.
    """

    summary = "FedCS: as many sites as fit before a deadline; biased to fast sites."
    source = "Nishio and Yonetani 2019; algorithms.md 7.21"

    def __init__(self, deadline: Annotated[float, Field(gt=0)] = 600.0, sequential: bool = False) -> None:
        _require(deadline=(deadline, 0 < deadline < math.inf, "more than 0"))
        self.chosen = FedCSSelector(deadline=deadline, sequential=sequential)
        super().__init__(self.chosen, Latencies())

    def report(self) -> dict[str, Any]:
        """As `Selecting`, and `over`: what there is to say where too few sites fit into the deadline."""
        return super().report() | ({"over": self.chosen.over} if self.chosen.over else {})
