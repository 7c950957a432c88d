# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds against synchronous ones over the same simulated time.

All hospitals train all the time. A synchronous round waits for the slowest; an asynchronous one ends with K
updates. Quality is measured at the same times of the clock, on average over time and at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from medflare.core.config import Settings
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.client_selection import LAST, UNBOUNDED
from method_comparison.tasks.question_hospitals import (
    Grid,
    QuestionSettings,
    make_learners,
    read_hospitals,
    write_hospitals,
)

DEALT, EVEN = "dirichlet", "even"


class AsyncMethod(Settings):
    """buffer: K, updates that end a round; None for a round of all."""

    buffer: int | None = Field(default=None, ge=1)


class AsyncRounds(ComparisonTask[QuestionSettings, AsyncMethod]):
    """Partition uneven: speeds and lines of spread `spread`; even: all alike, where nothing can be gained."""

    name = "async_rounds"
    settings, method_settings = QuestionSettings, AsyncMethod
    partitions = ("uneven", EVEN)
    columns: ClassVar[Mapping[str, Column]] = {
        "accuracy_mean": Column(title="mean over time"),
        "accuracy_end": Column(title="at the end"),
        "rounds": Column(title="rounds", scale=1.0, digits=0, tested=False),
        "updates": Column(title="updates", scale=1.0, digits=0, tested=False),
    }
    curve_axes: ClassVar[Mapping[str, str]] = {"accuracy": "simulated seconds"}

    def prepare(self, settings: QuestionSettings, partition: str, seed: int, shared: Path) -> None:
        write_hospitals(settings, DEALT, seed, shared)

    def train(self, unit: Unit[QuestionSettings, AsyncMethod]) -> Measured:
        from medflare.aggregation import make_rule
        from medflare.core.garbage import frozen_garbage
        from medflare.core.plan import RoundPlan
        from medflare.in_process.buffered_loop import federate_buffered
        from medflare.in_process.clocked_loop import Workload, federate_clocked
        from medflare.selection.clock import SimulatedClock, drawn_profiles

        settings, seed, buffer = unit.settings, unit.seed, unit.own.buffer
        learners, judge = make_learners(settings, read_hospitals(unit.shared, DEALT, seed), seed)
        spread = 0.0 if unit.partition == EVEN else settings.spread
        profiles = drawn_profiles(
            sorted(learners), seed, spread, seconds_per_example=settings.seconds_an_example, jitter=0.1
        )
        clock, rule = SimulatedClock(profiles, seed), make_rule("weighted_mean", {})
        work = Workload(down=settings.message, up=settings.message, batch=settings.batch)
        grid = Grid(judge, settings.horizon, settings.checks, learners[sorted(learners)[0]].initial_shared())

        def measure(number: int, state: Any, updates: Any) -> dict[str, float]:
            grid.advance(clock.now, state)
            return {}

        def plan(number: int) -> RoundPlan:
            return RoundPlan(round=number, rounds=UNBOUNDED, seed=seed)

        options: dict[str, Any] = {"on_round": measure, "budget": settings.horizon}
        with frozen_garbage():
            if buffer is None:
                run = federate_clocked(learners, rule, UNBOUNDED, plan, clock, work, **options)
            else:
                run = federate_buffered(learners, rule, UNBOUNDED, plan, clock, work, buffer, **options)
        curve = grid.finish()
        updates = sum(len(entry.timings) for entry in run.rounds)
        return Measured(
            values={
                "accuracy_mean": float(np.mean([value for _, value in curve])),
                "accuracy_end": float(np.mean([value for _, value in curve[-LAST:]])),
                "rounds": float(len(run.rounds)),
                "updates": float(updates),
            },
            curves={"accuracy": curve},
            bytes=2 * settings.message * updates,
        )
