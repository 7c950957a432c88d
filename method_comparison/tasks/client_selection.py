# SPDX-License-Identifier: Apache-2.0
"""DDCS against other choices of hospitals over equal simulated time (DD-16).

Twenty hospitals on a simulated clock, each with a speed and a line of its own. Every choice gets the same
simulated hours and as many rounds as fit; quality is measured at the same times of the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from medflare.core.config import Settings
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.question_hospitals import (
    OUTLIERS,
    Grid,
    QuestionSettings,
    has_wrong_answers,
    make_learners,
    read_hospitals,
    write_hospitals,
)
from method_comparison.time_to_target import time_to_target

LAST = 4
"""Checks at the end whose mean is the accuracy at the end: one alone is of few questions."""
UNBOUNDED = 1_000_000
"""Rounds; only the clock ends a run."""


class SelectionMethod(Settings):
    """A choice of hospitals.

    Attributes:
        rule, rule_settings: as in a job.
        graph: how sketches come about; shuffled: dealt anew by a seeded permutation (a control).
        strict: ε as a share of what q = d attains.
        fastest: FedCS's deadline lets this share of the hospitals in.
        honest: the hospitals of the partition `outliers` that have wrong answers take no part: what a choice
            that knew them would gain.
    """

    rule: str
    rule_settings: dict[str, Any] = Field(default_factory=dict)
    graph: Literal["plain", "unaligned", "completed", "shuffled"] | None = None
    strict: float | None = Field(default=None, gt=0)
    fastest: float | None = Field(default=None, gt=0, le=1)
    honest: bool = Field(default=False, exclude_if=lambda value: not value)


class ClientSelection(ComparisonTask[QuestionSettings, SelectionMethod]):
    """Trains through `in_process.federate_clocked`."""

    name = "client_selection"
    settings, method_settings = QuestionSettings, SelectionMethod
    partitions = ("iid", "class", "dirichlet", OUTLIERS)
    columns: ClassVar[Mapping[str, Column]] = {
        "accuracy_end": Column(title="accuracy at the end"),
        "accuracy_mean": Column(title="mean over time"),
        "minutes_to_40": Column(title="minutes to 40 %, restricted", scale=1.0),
        "minutes_to_50": Column(title="minutes to 50 %, restricted", scale=1.0),
        "rounds": Column(title="rounds", scale=1.0, digits=0, tested=False),
        "minutes": Column(title="minutes a round", scale=1.0, tested=False),
        "hospitals": Column(title="hospitals a round", scale=1.0, tested=False),
        "longest_wait": Column(title="longest wait, rounds", scale=1.0, digits=0, tested=False),
        "variance": Column(title="Σ d²/q", scale=1.0, tested=False),
    }
    targets: ClassVar[Mapping[str, str]] = {"40": "40 %", "50": "50 %"}
    curve_axes: ClassVar[Mapping[str, str]] = {"accuracy": "simulated seconds"}

    def check(self, settings: QuestionSettings, own: SelectionMethod) -> None:
        from medflare.aggregation import make_rule

        make_rule(own.rule, own.rule_settings)

    def prepare(self, settings: QuestionSettings, partition: str, seed: int, shared: Any) -> None:
        write_hospitals(settings, partition, seed, shared)

    def train(self, unit: Unit[QuestionSettings, SelectionMethod]) -> Measured:
        from medflare.core.garbage import frozen_garbage
        from medflare.core.plan import RoundPlan
        from medflare.in_process.clocked_loop import Workload, federate_clocked
        from medflare.selection.clock import SimulatedClock, drawn_profiles

        settings, seed = unit.settings, unit.seed
        sites = read_hospitals(unit.shared, unit.partition, seed)
        learners, judge = make_learners(settings, sites, seed)
        clock = SimulatedClock(
            drawn_profiles(
                sorted(learners), seed, settings.spread, seconds_per_example=settings.seconds_an_example
            ),
            seed,
        )
        learners = {name: learners[name] for name in taking_part(unit.own, unit.partition, learners)}
        rule, reports = make_choice(unit, sites, clock, learners), list[dict[str, Any]]()
        start = learners[sorted(learners)[0]].initial_shared()
        grid = Grid(judge, settings.horizon, settings.checks, start)

        def measure(number: int, state: Any, updates: Any) -> dict[str, float]:
            reports.append({**rule.report(), "trained": len(updates)})
            grid.advance(clock.now, state)
            return {}

        with frozen_garbage():
            run = federate_clocked(
                learners,
                rule,
                UNBOUNDED,
                lambda r: RoundPlan(round=r, rounds=UNBOUNDED, seed=seed),
                clock,
                Workload(down=settings.message, up=settings.message, batch=settings.batch),
                on_round=measure,
                state=start,
                budget=settings.horizon,
            )
        sent = 2 * settings.message * sum(report["trained"] for report in reports)
        return measured(grid.finish(), settings.horizon, run.rounds[-1].ended, reports, sent)


def taking_part(own: SelectionMethod, partition: str, names: Iterable[str]) -> list[str]:
    """Return the hospitals that a method may choose."""
    known = own.honest and partition == OUTLIERS
    return [name for name in names if not (known and has_wrong_answers(name))]


def measured(
    curve: list[tuple[float, float]], horizon: float, ended: float, reports: list[dict[str, Any]], sent: int
) -> Measured:
    """Return the values of a run.

    Args:
        curve: (simulated seconds, accuracy) at equal times up to `horizon`.
        ended: simulated seconds at the end of the last round, at or after the horizon.
        reports: what the rule said of each round, and how many `trained`.
    """
    times = {name: time_to_target(curve, int(name) / 100, horizon) for name in ("40", "50")}
    variance = [report["solution"]["variance"] for report in reports if "solution" in report]
    ages = [max(report.get("ages", {"": 0}).values(), default=0) for report in reports]
    values = {
        "accuracy_end": float(np.mean([value for _, value in curve[-LAST:]])),
        "accuracy_mean": float(np.mean([value for _, value in curve])),
        **{f"minutes_to_{name}": item.seconds / 60 for name, item in times.items()},
        "rounds": float(len(reports)),
        "minutes": ended / len(reports) / 60,
        "hospitals": float(np.mean([report["trained"] for report in reports])),
        "longest_wait": float(max(ages)),
    }
    if variance:
        values["variance"] = float(np.mean(variance))
    return Measured(values=values, times=times, curves={"accuracy": curve}, bytes=sent)


def make_choice(
    unit: Unit[Any, SelectionMethod],
    sites: Mapping[str, SiteConfig],
    clock: Any,
    learners: Mapping[str, Any],
) -> Any:
    """Return the method's rule, with sketches where it takes any."""
    from medflare.aggregation import make_rule
    from medflare.knowledge.divergence import distance_matrix
    from medflare.selection.objective import distance_between
    from medflare.selection.sampling import data_shares

    own, message = unit.own, unit.settings.message
    settings = dict(own.rule_settings)
    sizes = {name: len(learner.train_rows) for name, learner in learners.items()}
    if own.fastest is not None:
        times = [clock.timing(name, 0, size, message, message).total for name, size in sizes.items()]
        settings["deadline"] = float(np.quantile(times, own.fastest))
    sketches = make_sketches(sites, own.graph, unit.seed, sorted(learners)) if own.graph else {}
    if own.strict is not None:
        names = sorted(learners)
        shares = data_shares(sizes, names)
        even = distance_between(np.array([shares[n] for n in names]), distance_matrix(sketches, names))
        settings["epsilon"] = own.strict * even
    rule = make_rule(own.rule, settings)
    for name, sketch in sketches.items():
        rule.set_sketch(name, sketch)  # type: ignore[attr-defined]
    return rule


def make_sketches(sites: Mapping[str, SiteConfig], graph: str, seed: int, names: list[str]) -> dict[str, Any]:
    """Return the hospitals' sketches, under a key that is the same in every run of this program."""
    from medflare.data.settings.knowledge import CompletionConfig
    from medflare.knowledge.cohort_texts import knowledge_texts
    from medflare.knowledge.minhash import Sketcher
    from medflare.knowledge.site_graph import site_graph
    from medflare.knowledge.sketch_key import SECRET, SketchKey

    sketcher = Sketcher(SketchKey(bytes(SECRET), "study"))
    change = {
        "align": graph != "unaligned",
        "completion": CompletionConfig(epochs=30) if graph == "completed" else None,
    }
    sketches = {}
    for name in names:
        site = sites[name]
        assert site.knowledge is not None, "the synthetic hospitals have a vocabulary and a key"
        config = site.knowledge.model_copy(update=change)
        texts = knowledge_texts(load_cohort(site))
        sketches[name] = sketcher.sketch(site_graph(config, texts, site.backbone))
    if graph == "shuffled":
        others = np.random.default_rng(seed).permutation(names)
        sketches = dict(zip(names, map(sketches.__getitem__, others), strict=True))
    return sketches
