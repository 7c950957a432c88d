# SPDX-License-Identifier: Apache-2.0
"""A medflare method whose training adds a constant to arrays, offered by an entry point as a package's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from medflare.core.method import Method, MethodFacts, MethodSettings
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.update import Update
from medflare.data.settings.site import SiteConfig
from medflare.learners.base import BaseLearner
from medflare.learners.client_terms.base import Shared
from peer_parts.clock_file import note_time

ARRAYS = 8
EXAMPLES = 10


class ArraySettings(MethodSettings):
    """values: of all arrays together, fp32."""

    values: int = 1_000_000


class ArrayLearner(BaseLearner):
    """Arrays to which a round adds a constant."""

    def __init__(self, settings: ArraySettings, site: str, seed: int) -> None:
        size = settings.values // ARRAYS
        self.arrays = {f"arrays.{number}": torch.zeros(size) for number in range(ARRAYS)}
        super().__init__(site, seed, EXAMPLES)

    def live(self) -> Shared:
        return self.arrays

    def describe(self) -> SiteDescription:
        return SiteDescription.model_validate(
            {
                "backbone": {"name": "arrays", "fingerprint": "0"},
                "parameters": {"arrays": sum(value.numel() for value in self.arrays.values())},
                "examples": {"train": EXAMPLES, "val": 0, "test": 0},
            }
        )

    def fit(self, plan: RoundPlan) -> Update:
        note_time(self.site)
        for value in self.arrays.values():
            value += 1e-3
        return Update(delta=self.delta(), examples=EXAMPLES, metrics={"loss": 1.0})

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        return Metrics()

    def metric_names(self) -> MetricNames:
        return MetricNames(validation=[], tested={})

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return []


def build(settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None) -> ArrayLearner:
    """Return the learner; the site's data are not read."""
    return ArrayLearner(METHOD.resolve(settings), site.name, seed)


METHOD: Method[Any] = Method(
    name="peer_arrays",
    task="summaries",
    settings=ArraySettings,
    presets={"recommended": {}},
    variants={"": {}},
    facts=MethodFacts(summary="Arrays.", source="benchmarks/peers.py", metrics=("loss",)),
    build="peer_parts.array_method:build",
    result_file="arrays.json",
)
