# SPDX-License-Identifier: Apache-2.0
"""Report generators of patients who come again: FedTAR, its pooled form and CT2RepLong, same control.

Synthetic patients have pictures in place of CT volumes: a volume of CT2RepLong here is two slices, a picture
and air.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from medflare.in_process.checkpoint import LoopCheckpoint
from method_comparison.tasks.base import Unit
from method_comparison.tasks.report_generators import (
    SHIFTS,
    GeneratorComparison,
    GeneratorMethod,
    ReportGenerators,
    scores_of,
)

ENTRIES = 2
"""Of a patient's profile: age and sex."""
TEMPORAL = "temporal"
"""Rule whose rounds go through the visits one after the other; all others train on all visits together."""


class VisitComparison(GeneratorComparison):
    """Budget and data, equal for all methods. visits: of a patient, at most."""

    visits: int = Field(default=3, ge=2)


class VisitGenerators(ReportGenerators):
    """As `ReportGenerators`, over visits; `steps` of a round are shared by the visits of a temporal rule."""

    name = "visit_generators"
    settings = VisitComparison
    partitions = ("visits",)

    def prepare(self, settings: VisitComparison, partition: str, seed: int, shared: Path) -> None:  # type: ignore[override]
        from medflare.synthetic import DEMO_HOSPITALS
        from medflare.synthetic.follow_up import write_follow_up

        for number in range(1, settings.hospitals + 1):
            folder = shared / f"hospital-{number}"
            if not (folder / "manifest.jsonl").is_file():
                write_follow_up(DEMO_HOSPITALS[number - 1], folder, settings.patients, settings.visits)

    def _sites(self, unit: Unit[Any, GeneratorMethod]) -> dict[str, Any]:
        from medflare.data.settings.visits import VisitConfig

        visits = VisitConfig.model_validate({"order": "visit", "most": unit.settings.visits})
        found = {}
        for name, config in super()._sites(unit).items():
            cohorts = [cohort.model_copy(update={"visits": visits}) for cohort in config.cohort]
            found[name] = config.model_copy(update={"cohort": cohorts})
        return found

    def _exchanges(self, own: GeneratorMethod) -> int:
        return int(own.rule_settings["visits"]) if own.rule == TEMPORAL else 1

    def _federate(
        self,
        unit: Unit[Any, GeneratorMethod],
        learners: Mapping[str, Any],
        keep: Any,
        checkpoint: LoopCheckpoint,
    ) -> Mapping[str, Any]:
        if unit.own.rule != TEMPORAL:
            return super()._federate(unit, learners, keep, checkpoint)
        from medflare.aggregation import make_rule
        from medflare.core.plan import RoundPlan
        from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits

        rule: Any = make_rule(TEMPORAL, unit.own.rule_settings)
        one = next(iter(learners.values()))
        profiles = {name: learner.patient_profiles for name, learner in learners.items()}
        agree_on_mixture(profiles, one.settings.mixture, ENTRIES, unit.seed)
        plan = RoundPlan(round=0, rounds=1, seed=unit.seed, steps=_share(unit.settings.steps, rule.visits))

        def keep_exchange(number: int, state: Any, updates: Any) -> None:
            keep(number, state, {name: u for name, u in updates.items() if "loss" in u.metrics})

        rounds = unit.settings.rounds
        return federate_visits(
            learners,
            rule,
            rounds,
            lambda number: replace(plan, round=number),
            keep_exchange,
            checkpoint=checkpoint,
        )

    def _all_scores(
        self, settings: GeneratorComparison, partition: str, learners: Mapping[str, Any]
    ) -> dict[str, float]:
        """Score the shared model on the sites' own test visits."""
        from medflare.tasks.reports.evaluation import greedy

        references: list[str] = []
        drafts: list[str] = []
        codes: list[np.ndarray] = []
        moved: dict[int, list[str]] = {shift: [] for shift in SHIFTS}
        for learner in learners.values():
            rows = learner.samples.rows("test")[: settings.tested]
            decoding = greedy(learner.settings.decoding)
            decoding = decoding.model_copy(update={"max_new_tokens": settings.max_new_tokens})
            texts = learner.draft(rows, decoding)
            references += learner.samples.reports(rows)
            codes.append(learner.samples.codes[rows].numpy())
            drafts += texts
            for shift in SHIFTS:
                moved[shift] += list(np.roll(texts, shift))
        return scores_of(references, drafts, np.concatenate(codes), moved)


def _share(steps: int | None, visits: int) -> int | None:
    return None if steps is None else max(1, steps // visits)
