# SPDX-License-Identifier: Apache-2.0
"""Sites with quadratic losses of different curvature: several local steps pull FedAvg off the optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fed_learner import ADAPTER, SmallLearner
from torch import Tensor

from medflare.core.metrics import Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.update import Update
from medflare.data.settings.site import load_site
from medflare.worker import config as worker_config

CURVES = {"site-1": (1.0, 0.2), "site-2": (0.1, 2.0), "site-3": (0.5, 0.5)}
GOALS = {"site-1": (1.0, 0.0), "site-2": (-1.0, 2.0), "site-3": (3.0, -3.0)}
EXAMPLES = {"site-1": 30, "site-2": 20, "site-3": 10}
LR, STEPS = 0.3, 10


def optimum() -> Tensor:
    """Of the mean of all sites' losses."""
    curves, goals = torch.tensor(list(CURVES.values())), torch.tensor(list(GOALS.values()))
    return (curves * goals).sum(0) / curves.sum(0)


def fixed_point_of_fedavg() -> Tensor:
    """Where the mean of the sites after STEPS steps is where they began: Σ (1 − (1 − ηa)^τ)(b − θ) = 0."""
    curves, goals = torch.tensor(list(CURVES.values())), torch.tensor(list(GOALS.values()))
    weights = 1 - (1 - LR * curves) ** STEPS
    return (weights * goals).sum(0) / weights.sum(0)


class QuadraticLearner(SmallLearner):
    """½ Σ_i a_i (θ_i − b_i)² by plain SGD on the exact gradient; setting `goals` (site -> b) may differ."""

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        super().__init__(settings, site, seed)
        self.a = torch.tensor(CURVES[site])
        self.b = torch.tensor(settings.get("goals", GOALS)[site])
        self.examples = {"train": EXAMPLES[site], "val": 5, "test": 5}
        self.use_parameter(2)

    def loss(self) -> Tensor:
        return (self.a * (self.w[0] - self.b).square()).sum() / 2

    def fit(self, plan: RoundPlan) -> Update:
        before, steps = self.initial_shared()[ADAPTER], plan.steps or STEPS
        optimiser = torch.optim.SGD([self.w], lr=LR)
        self.terms.begin(plan)
        self.terms.watch(optimiser, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss().backward()
            optimiser.step()
        terms = self.terms.finish()
        return Update(
            delta={ADAPTER: self.initial_shared()[ADAPTER] - before},
            examples=self.examples["train"],
            metrics={"loss": self.loss().item()} | terms.metrics,
            sums=terms.sums,
            factor=terms.factor,
        )

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        return Metrics({"loss": self.loss().item()}, EXAMPLES[self.site])

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return []


def use_site_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites read their own site.yaml."""
    monkeypatch.setattr(
        worker_config, "load_site_settings", lambda config: load_site(Path(config.site_file), config.site)
    )
