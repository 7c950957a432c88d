# SPDX-License-Identifier: Apache-2.0
"""How far knowledge graphs move the odds of DDCS; nothing is trained.

ε is a share of what q = d attains on the same graphs. "Moved" is the total variation between the odds with
the hospitals' aligned graphs and the odds with others: names as spelled, or each hospital with another's
graph. "By repeats" is the part of the lower divergence that equal distances between all hospitals would have
given too: Δ(1 − qᵀq) times their mean. "Follows" is the correlation, over pairs of hospitals, of the graphs'
distances with those of what the hospitals hold to be the answers, known from the synthetic world.
"Odds of wrong answers", in the partition `outliers`: Σ q of the hospitals with wrong answers as a share of
their Σ d; below 1 the graphs tell them from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from medflare.core.config import Settings
from medflare.data.records import Question
from medflare.selection.objective import Matrix, Vector
from medflare.selection.problem import PairsOf, Solution
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.client_selection import make_sketches
from method_comparison.tasks.question_hospitals import (
    OUTLIERS,
    QuestionSettings,
    has_wrong_answers,
    read_hospitals,
    write_hospitals,
)

CAP, DRAWS = 2.0, 5


class OddsMethod(Settings):
    """One reading of ε and its size; share: of the ε that q = d attains."""

    pairs_of: PairsOf = "draws"
    share: float = Field(default=1.0, gt=0, le=1)


class KnowledgeOdds(ComparisonTask[QuestionSettings, OddsMethod]):
    """Solves DDCS's problem for the hospitals and latencies of `client_selection`."""

    name = "knowledge_odds"
    settings, method_settings = QuestionSettings, OddsMethod
    partitions = ("iid", "class", "dirichlet", OUTLIERS)
    columns: ClassVar[Mapping[str, Column]] = {
        "slowest": Column(title="expected slowest, s", scale=1.0),
        "variance": Column(title="Σ d²/q", scale=1.0, digits=2, tested=False),
        "smallest": Column(title="smallest ε, share", scale=1.0, digits=2, tested=False),
        "repeats": Column(title="by repeats, %", tested=False),
        "unaligned": Column(title="moved, unaligned", scale=1.0, digits=2, tested=False),
        "exchanged": Column(title="moved, exchanged", scale=1.0, digits=2, tested=False),
        "wrong": Column(title="odds of wrong answers", scale=1.0, digits=2, tested=False),
        "wrong_exchanged": Column(title="the same, exchanged", scale=1.0, digits=2, tested=False),
        "follows": Column(title="follows the answers", scale=1.0, digits=2, tested=False),
        "follows_unaligned": Column(title="follows, unaligned", scale=1.0, digits=2, tested=False),
        "follows_exchanged": Column(title="follows, exchanged", scale=1.0, digits=2, tested=False),
    }

    def prepare(self, settings: QuestionSettings, partition: str, seed: int, shared: Path) -> None:
        write_hospitals(settings, partition, seed, shared)

    def train(self, unit: Unit[QuestionSettings, OddsMethod]) -> Measured:
        federation, own = Federation(unit), unit.own
        solved = federation.solve("plain", own)
        even = solved.epsilon / own.share
        values = {
            "slowest": solved.expected_slowest,
            "variance": solved.variance,
            "smallest": solved.smallest_epsilon / even,
            "follows": federation.correlation("plain"),
        }
        others = {graph: federation.solve(graph, own) for graph in ("unaligned", "exchanged")}
        for graph, other in others.items():
            values[graph] = float(np.abs(other.q - solved.q).sum() / 2)
            values[f"follows_{graph}"] = federation.correlation(graph)
        if unit.partition == OUTLIERS:
            values["wrong"] = federation.odds_of_wrong(solved)
            values["wrong_exchanged"] = federation.odds_of_wrong(others["exchanged"])
        if own.pairs_of == "draws" and own.share < 1:
            share = share_by_repeats(solved.q, federation.shares, federation.graphs["plain"])
            values |= {} if share is None else {"repeats": share}
        return Measured(values=values)


class Federation:
    """The hospitals of one partition and seed, as the rule sees them."""

    def __init__(self, unit: Unit[QuestionSettings, OddsMethod]) -> None:
        from medflare.data.load import load_cohort
        from medflare.knowledge.divergence import distance_matrix
        from medflare.selection.clock import SimulatedClock, drawn_profiles
        from medflare.selection.sampling import data_shares

        sites, settings = read_hospitals(unit.shared, unit.partition, unit.seed), unit.settings
        questions = {name: load_cohort(site).questions for name, site in sites.items()}
        train = {name: [q for q in own if q.split == "train"] for name, own in questions.items()}
        self.names = sorted(name for name, own in train.items() if own)
        shares = data_shares({name: len(train[name]) for name in self.names}, self.names)
        self.shares: Vector = np.array([shares[name] for name in self.names])
        profiles = drawn_profiles(
            self.names, unit.seed, settings.spread, seconds_per_example=settings.seconds_an_example
        )
        clock, message = SimulatedClock(profiles, unit.seed), settings.message
        timings = [clock.timing(name, 0, len(train[name]), message, message) for name in self.names]
        self.latencies: Vector = np.array([timing.total for timing in timings if timing is not None])
        self.answers = answer_distances([train[name] for name in self.names], settings)
        self.graphs = {
            graph: distance_matrix(make_sketches(sites, graph, unit.seed, self.names), self.names)
            for graph in ("plain", "unaligned")
        }
        order = np.random.default_rng(unit.seed).permutation(len(self.names))
        self.graphs["exchanged"] = self.graphs["plain"][np.ix_(order, order)]

    def correlation(self, graph: str) -> float:
        """Return how a graph's distances follow, over pairs of hospitals, those of their answers."""
        pairs = np.triu_indices(len(self.names), 1)
        return float(np.corrcoef(self.graphs[graph][pairs], self.answers[pairs])[0, 1])

    def odds_of_wrong(self, solution: Solution) -> float:
        """Return Σ q of the hospitals with wrong answers over their Σ d."""
        wrong = [has_wrong_answers(name) for name in self.names]
        return float(solution.q[wrong].sum() / self.shares[wrong].sum())

    def solve(self, graph: str, own: OddsMethod) -> Solution:
        """Return the odds where ε is the method's share of what q = d attains on `graph`."""
        from medflare.selection.optimiser import solve
        from medflare.selection.problem import Problem

        def problem(epsilon: float | None) -> Problem:
            return Problem(
                sites=tuple(self.names),
                latencies=self.latencies,
                shares=self.shares,
                distances=self.graphs[graph],
                draws=DRAWS,
                epsilon=epsilon,
                most_variance=CAP,
                pairs_of=own.pairs_of,
            )

        return solve(problem(own.share * problem(None).limit))


def answer_distances(questions: Sequence[Sequence[Question]], settings: QuestionSettings) -> Matrix:
    """Return 1 − J (N, N) of the sets of things that the hospitals' questions are marked with as answers.

    A thing is one whatever a hospital calls it: the world that the questions were made of has all its names.
    """
    from medflare.synthetic.knowledge.hospitals import QuestionsDemo
    from medflare.synthetic.knowledge.obo import terms_of

    terms = terms_of(QuestionsDemo(diseases=settings.diseases, groups=settings.groups).world)
    preferred = {name: names[0] for _, names in terms for name in names}
    held = [{preferred[q.answer_text] for q in own} for own in questions]
    return np.array([[1 - len(a & b) / len(a | b) for b in held] for a in held])


def share_by_repeats(q: Vector, d: Vector, D: Matrix) -> float | None:
    """Return the share of dᵀDd − qᵀDq that D with all distances at their mean gives; None if nothing fell."""
    fell = float(d @ D @ d - q @ D @ q)
    mean = float(D.sum() / (D.size - len(D)))
    return mean * float(q @ q - d @ d) / fell if fell > 1e-3 else None
