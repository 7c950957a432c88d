# SPDX-License-Identifier: Apache-2.0
"""Sites whose patients come back: linear regression whose answer drifts from visit to visit, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fed_harness import Federation, final
from torch import Tensor, nn

from medflare.core.plan import RoundPlan
from medflare.core.run_record import Estimate, EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update
from medflare.learners.client_terms import ClientTerms
from medflare.learners.fedtar.federated_em import em_statistics, profile_moments
from medflare.learners.fedtar.mixture import Mixture
from medflare.learners.fedtar.visit_sums import VisitTrail, visit_sums_spec, visit_times

NAME, WIDTH, VAL = "adapter.base_model.model.layer.lora_A.weight", 4, 6
LR = 0.05
COUNTS = {"site-1": [9, 7, 5], "site-2": [6, 0, 8], "site-3": [4, 8, 0]}
"""n_{k,t}: two sites lack a visit."""
REGULAR = {"site-1": [9, 7, 5], "site-2": [6, 5, 8], "site-3": [4, 8, 3]}


class VisitLearner:
    """y = w x with another w for every visit; the validation set is of the last one.

    Settings: `counts` {site: [n_1 .. n_T]}, COUNTS where none are given; `raises`, a site, with `exchange`.
    """

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        self.settings, self.site = settings, site
        self.counts = settings.get("counts", COUNTS)[site]
        draw = torch.Generator().manual_seed(int(site[-1]))
        self.data = [self._draw(count, t, draw) for t, count in enumerate(self.counts)]
        self.val = self._draw(VAL, len(self.counts) - 1, draw)
        self.values = torch.rand(max(self.counts), 2, generator=draw, dtype=torch.float64)
        times = [(t + 1, 200.0 * (t > 0), 200.0 * t) for t, count in enumerate(self.counts) if count]
        self.trail = VisitTrail(len(self.counts), visit_times(times, len(self.counts)))
        self.w = nn.Parameter(torch.zeros(1, WIDTH))
        self.terms = ClientTerms(site, lambda: {NAME: self.w})
        self.taken: Mixture | None = None

    @staticmethod
    def _draw(count: int, visit: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, WIDTH, generator=draw)
        return x, x @ torch.full((WIDTH,), 1.0 + 0.5 * visit) + 0.1 * torch.randn(count, generator=draw)

    def describe(self) -> SiteDescription:
        return SiteDescription.model_validate(
            {
                "backbone": {"name": "visits", "fingerprint": "f0"},
                "parameters": {"adapter": WIDTH},
                "adapter_config": {
                    "peft_type": "LORA",
                    "r": 1,
                    "lora_alpha": 2,
                    "base_model_name_or_path": "toy",
                },
                "export": {"file": "report_generator", "kind": "toy"},
                "examples": {"train": sum(self.counts), "val": VAL, "test": VAL},
            }
        )

    def shared_spec(self) -> SharedSpec:
        return {NAME: ((1, WIDTH), torch.float32)}

    def sums_spec(self, sites: int) -> SharedSpec:
        return visit_sums_spec(len(self.counts))

    def initial_shared(self) -> State:
        return {NAME: torch.zeros(1, WIDTH)}

    def load_shared(self, state: State) -> None:
        check_state(state, self.shared_spec(), self.site)
        with torch.no_grad():
            self.w.copy_(state[NAME])

    def loss(self, data: tuple[Tensor, Tensor]) -> Tensor:
        x, y = data
        return (x @ self.w[0] - y).square().mean()

    def _validation(self) -> tuple[State, int]:
        (gradient,) = torch.autograd.grad(self.loss(self.val), self.w)
        return {NAME: gradient}, VAL

    def rows(self, plan: RoundPlan) -> tuple[Tensor, Tensor]:
        if hint := plan.hints.visit:
            return self.data[hint.visit - 1]
        xs, ys = zip(*self.data, strict=True)
        return torch.cat(xs), torch.cat(ys)

    def fit(self, plan: RoundPlan) -> Update:
        if (self.site, plan.round) == (self.settings.get("raises"), self.settings.get("exchange")):
            raise RuntimeError("no disk")
        before = self.w.detach().clone()
        sums = self.trail.receive(plan, {NAME: before}, self._validation)
        data, hint = self.rows(plan), plan.hints.visit
        metrics = {"visit": float(hint.visit)} if hint else {}
        self.terms.begin(plan)
        if len(data[0]):
            metrics["loss"] = self.loss(data).item()
            self._train(data, plan.steps or 3)
        told, delta = self.terms.finish(), {NAME: self.w.detach() - before}
        sums |= told.sums
        return Update(delta=delta, examples=len(data[0]), metrics=metrics, sums=sums, factor=told.factor)

    def _train(self, data: tuple[Tensor, Tensor], steps: int) -> None:
        optimiser = torch.optim.SGD([self.w], lr=LR)
        self.terms.watch(optimiser, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss(data).backward()
            optimiser.step()

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        data = self.rows(plan) if split == "train" else self.val
        return {"loss": self.loss(data).item()}

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        loss = self.evaluate("test", plan)["loss"]
        found = {"loss": Estimate(value=loss, low=loss, high=loss)}
        return [
            EvaluationRecord(
                site=self.site,
                role="participant",
                adapter="generic",
                split="test",
                studies=VAL,
                metrics=found,
            )
        ]

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = self.trail.state()
        return {**tensors, **self.terms.state()}, values

    def load_local_state(self, tensors: State, values: Any) -> None:
        self.trail.restore(self.terms.restore(tensors), values)

    # ---- the mixture of profiles -------------------------------------------------------------------------

    def profile_sums(self) -> State:
        return profile_moments(self.values)

    def mixture_sums(self, mixture: Mixture) -> State:
        return em_statistics(mixture, self.values)

    def take_mixture(self, mixture: Mixture) -> None:
        self.taken = mixture


def build_visits(
    method: str, settings: dict[str, Any], site: Any, seed: int, cache: Path | None
) -> VisitLearner:
    """A builder for workers; the site's name stands in for its cohort."""
    return VisitLearner(settings, str(site), seed)


def final_w(run: Federation) -> Tensor:
    """w after the last round."""
    return final(run)[NAME]
