# SPDX-License-Identifier: Apache-2.0
"""Sites with quadratic losses of different curvature: several local steps pull FedAvg off the optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fed_harness
import pytest
import torch
from torch import Tensor, nn

from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update
from medflare.data.settings.site import load_site
from medflare.federation.site import worker_config
from medflare.learners.client_terms import ClientTerms

NAME = "adapter.base_model.model.layer.lora_A.weight"
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


class QuadraticLearner:
    """½ Σ_i a_i (θ_i − b_i)² by plain SGD on the exact gradient; setting `goals` (site -> b) may differ."""

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        self.site = site
        self.a = torch.tensor(CURVES[site])
        self.b = torch.tensor(settings.get("goals", GOALS)[site])
        self.network = nn.Module()
        self.theta = nn.Parameter(torch.zeros(1, 2))
        self.terms = ClientTerms(site, lambda: {NAME: self.theta})

    def describe(self) -> SiteDescription:
        return SiteDescription.model_validate(
            {
                "backbone": {"name": "quadratic", "fingerprint": "f0"},
                "parameters": {"adapter": 2},
                "adapter_config": {"peft_type": "LORA", "r": 1, "base_model_name_or_path": "quadratic"},
                "export": {"file": "report_generator", "kind": "toy"},
                "examples": {"train": EXAMPLES[self.site], "val": 5, "test": 5},
            }
        )

    def shared_spec(self) -> SharedSpec:
        return {NAME: ((1, 2), torch.float32)}

    def sums_spec(self, sites: int) -> SharedSpec:
        return {}

    def initial_shared(self) -> State:
        return {NAME: self.theta.detach().clone()}

    def load_shared(self, state: State) -> None:
        check_state(state, self.shared_spec(), self.site)
        with torch.no_grad():
            self.theta.copy_(state[NAME])

    def loss(self) -> Tensor:
        return (self.a * (self.theta[0] - self.b).square()).sum() / 2

    def fit(self, plan: RoundPlan) -> Update:
        before, steps = self.initial_shared()[NAME], plan.steps or STEPS
        optimiser = torch.optim.SGD([self.theta], lr=LR)
        self.terms.begin(plan)
        self.terms.watch(optimiser, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss().backward()
            optimiser.step()
        told = self.terms.finish()
        return Update(
            delta={NAME: self.initial_shared()[NAME] - before},
            examples=EXAMPLES[self.site],
            metrics={"loss": self.loss().item()} | told.metrics,
            sums=told.sums,
            factor=told.factor,
        )

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        return {"loss": self.loss().item()}

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return []

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return self.terms.state(), {}

    def load_local_state(self, tensors: State, values: Any) -> None:
        self.terms.restore(tensors)


def build_quadratic(
    method: str, settings: dict[str, Any], site: Any, seed: int, cache: Path | None
) -> QuadraticLearner:
    """A builder for workers; the site's name stands in for its cohort."""
    return QuadraticLearner(settings, str(site), seed)


def quadratic_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites read their own site.yaml and train quadratic losses."""
    monkeypatch.setattr(
        worker_config, "load_site_settings", lambda config: load_site(Path(config.site_file), config.site)
    )

    def build(method: str, settings: dict[str, Any], site: Any, seed: int, cache: Path | None) -> Any:
        return QuadraticLearner({}, site.name, seed)

    monkeypatch.setattr(fed_harness, "build_toy", build)
