# SPDX-License-Identifier: Apache-2.0
"""Aggregation rules that sample clients: DDCS and what it is compared with (Zhang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from medflare.aggregation.base import RuleFacts
from medflare.aggregation.capabilities import NeedsExactSizes, NeedsSketches
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.core.hints import ProximalHint, RoundHints
from medflare.core.idle_settings import idle_if
from medflare.core.sketch import Sketch
from medflare.selection.baselines import FedCSSelector, ImportanceSelector, UniformSelector
from medflare.selection.latency import Latencies
from medflare.selection.problem import PairsOf
from medflare.selection.sampled_mean import MAX_SAMPLES, PRODUCTS, AveragingMode, SampledMean
from medflare.selection.selectors import DdcsSelector
from medflare.selection.strata import StratifiedSelector

Rank = Annotated[int, Field(ge=1)]


class DrawSettings(NormClipSettings):
    """Settings of rules that draw with replacement."""

    draws: int = Field(default=5, ge=1, le=MAX_SAMPLES)
    """S, draws with replacement in a round; a site drawn twice trains once."""


class PairSettings(DrawSettings):
    """Settings of rules that also step with products of LoRA factors."""

    mode: AveragingMode = "factor_delta"
    """of LoRA pairs, the step of both factors' differences, or of their products, which is exact."""
    most_rank: Rank | None = None
    """of mode product_restart, rank above which merged factors are approximated; null for none."""

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if((self.mode != "product_restart", f"mode is '{self.mode}'", "most_rank"))


class SketchedMean(SampledMean, NeedsSketches):
    """Sampled mean of a rule that compares sites by their sketches."""

    def set_sketch(self, site: str, sketch: Sketch | None) -> None:
        """Take a first or newer sketch, or None where a site has none any more; the odds change with it."""
        if sketch is None:
            self.known.sketches.pop(site, None)
        else:
            self.known.sketches[site] = sketch


class Ddcs(SketchedMean, NeedsExactSizes):
    """S draws from the q that makes the expected slowest site fast while the drawn data stay alike."""

    facts = RuleFacts(
        summary="DDCS: draws sites by latency, within a limit on how far their knowledge graphs lie apart.",
        source="Zhang et al. 2025 (paper 004); DD-1 to DD-10",
        reads_sum=True,
        stack_with=PRODUCTS,
    )

    class Settings(PairSettings):
        floor: float = Field(default=0.2, gt=0, le=1)
        """φ; q_i ≥ φ d_i, which bounds every importance weight by 1/φ."""
        epsilon: Annotated[float, Field(ge=0, le=1)] | None = None
        """ε, the largest mean distance of two draws' knowledge graphs; null for what q = d attains."""
        most_variance: Annotated[float, Field(ge=1)] | None = None
        """the largest Σ d_i²/q_i, which is 1 for q = d; null for no cap."""
        variance_rounds: float = Field(default=0.0, ge=0)
        """ρ; counts a round's seconds 1 + ρ (Σ d_i²/q_i − 1) times, as variance costs rounds."""
        age_bonus: float = Field(default=0.1, ge=0, lt=1)
        """β; share of the odds that goes to sites by the rounds they have waited."""
        period: int = Field(default=5, ge=1)
        """P; the odds are worked out again every P rounds."""
        on_infeasible: Literal["relax", "error"] = "relax"
        """where no odds keep ε, go on with the least divergent ones, or end the run."""
        quantile: Annotated[float, Field(ge=0, le=1)] | None = None
        """plan with this quantile of a site's latencies; null for exponential means."""
        smoothing: float = Field(default=0.3, gt=0, le=1)
        """weight of the newest round in those means."""
        pairs_of: PairsOf = "draws"
        """ε is on pairs of draws, of which a site drawn twice counts as 0, or on pairs of different sites,
        where only whose data are alike makes the distance small."""
        weights: Literal["unbiased", "drawn"] = "unbiased"
        """of a site in the step. unbiased: c_i d_i / (S q_i), which gives back to a rarely drawn site what
        the odds took from it. drawn: c_i / S, so that it counts little (DD-17)."""
        distances: Literal["sketches", "exact"] = "sketches"
        """between sites' knowledge graphs, from sketches, or from exact sizes by private set intersection,
        once before round 1 and of sites whose policy.knowledge_exact allows it."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        given = self.settings
        self.chosen = DdcsSelector(
            draws=given.draws,
            unbiased=given.weights == "unbiased",
            floor=given.floor,
            epsilon=given.epsilon,
            most_variance=given.most_variance,
            variance_rounds=given.variance_rounds,
            age_bonus=given.age_bonus,
            period=given.period,
            on_infeasible=given.on_infeasible,
            pairs_of=given.pairs_of,
        )
        self.set_selector(self.chosen, Latencies(given.smoothing, given.quantile))
        self.set_mode(given.mode, given.most_rank)
        self.sketch_period = given.period

    def disabled_capabilities(self) -> tuple[type, ...]:
        return (NeedsSketches,) if self.settings.distances == "exact" else (NeedsExactSizes,)

    def set_exact_sizes(self, sizes: Mapping[str, int], shared: Mapping[tuple[str, str], int]) -> None:
        """Take the exact sizes of the sites' graphs and of what pairs of them share."""
        self.known.sizes, self.known.shared = dict(sizes), dict(shared)

    def report(self) -> dict[str, Any]:
        """Return the report of `SampledMean` and `solution`: the probabilities before the age bonus."""
        solution = self.chosen.solution
        return super().report() | ({"solution": solution.to_json()} if solution else {})


class StratifiedSampling(SketchedMean):
    """One draw from each of S urns, filled by clusters of sites that know the same."""

    facts = RuleFacts(
        summary="Knowledge-stratified sampling: rounds draw from every cluster of like knowledge graphs.",
        source="ours, after Fraboni et al. 2021, algorithm 2; DD-15",
        needs="individual",
        instead="rule 'ddcs' or 'uniform_selection', which can promise enough different sites",
    )

    class Settings(DrawSettings):
        clusters: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
        """clusters of sites at most; null for as many as draws."""
        sketch_period: int = Field(default=5, ge=1)
        """rounds after which sites are asked whether their sketch has changed."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.chosen = StratifiedSelector(draws=self.settings.draws, clusters=self.settings.clusters)
        self.set_selector(self.chosen, Latencies())
        self.sketch_period = self.settings.sketch_period

    def report(self) -> dict[str, Any]:
        """Return the report of `SampledMean` and `strata`: the clusters, each with its fastest site first."""
        return super().report() | ({"strata": self.chosen.strata} if self.chosen.strata else {})


class UniformSelection(SampledMean):
    """q = 1/K, and importance weights."""

    facts = RuleFacts(
        summary="Uniform selection: S sites drawn alike in each round, weighed so that no site is favoured.",
        source="McMahan et al. 2017",
        reads_sum=True,
        stack_with=PRODUCTS,
    )

    class Settings(PairSettings):
        mu: float = Field(default=0.0, ge=0)
        """μ of FedProx, which holds drawn sites near the state they received; 0 for none."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_selector(UniformSelector(draws=self.settings.draws), Latencies())
        self.set_mode(self.settings.mode, self.settings.most_rank)

    def client_terms(self) -> RoundHints:
        mu = self.settings.mu
        return super().client_terms() | (RoundHints(proximal=ProximalHint(mu=mu)) if mu else RoundHints())


class ImportanceSampling(SampledMean):
    """q ∝ d_i ‖Δ_i‖ above a floor, which makes the variance of the update least."""

    facts = RuleFacts(
        summary="Importance sampling: sites are drawn by their data and the size of their last update.",
        source="Luo et al. 2022; DD-11",
        needs="individual",
        instead="rule 'ddcs' or 'uniform_selection', which need a sum alone",
        reads_sum=True,
    )

    class Settings(DrawSettings):
        floor: float = Field(default=0.2, gt=0, le=1)
        """φ; q_i ≥ φ d_i."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_selector(
            ImportanceSelector(draws=self.settings.draws, floor=self.settings.floor), Latencies()
        )


class FedCS(SampledMean):
    """As many sites as fit before a deadline, weighed by examples; slow sites never train."""

    facts = RuleFacts(
        summary="FedCS: as many sites as fit before a deadline; biased to fast sites.",
        source="Nishio and Yonetani 2019",
        reads_sum=True,
    )

    class Settings(NormClipSettings):
        deadline: float = Field(default=600.0, gt=0)
        """seconds of a round."""
        sequential: bool = False
        """sites send one after the other; otherwise all at once."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.chosen = FedCSSelector(deadline=self.settings.deadline, sequential=self.settings.sequential)
        self.set_selector(self.chosen, Latencies())

    def report(self) -> dict[str, Any]:
        """Return the report of `SampledMean` and `over`: the message if too few sites meet the deadline."""
        return super().report() | ({"over": self.chosen.over} if self.chosen.over else {})
