# SPDX-License-Identifier: Apache-2.0
"""Sites whose patients come back: linear regression whose answer drifts from visit to visit, in float32."""

from __future__ import annotations

from typing import Any

import torch
from fed_learner import ADAPTER, SmallLearner
from torch import Tensor

from medflare.core.metrics import Metrics
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.learners.fedtar.visit_sums import VisitTrail, visit_sums_spec, visit_times
from mixture_patients import MixturePatients

WIDTH, VAL = 4, 6
LR = 0.05
COUNTS = {"site-1": [9, 7, 5], "site-2": [6, 0, 8], "site-3": [4, 8, 0]}
"""n_{k,t}: two sites lack a visit."""
ONE_LACKS = {"site-1": [9, 7, 5], "site-2": [6, 0, 8], "site-3": [4, 8, 3]}
NOBODY_HAS = {"site-1": [9, 0, 5], "site-2": [6, 0, 8], "site-3": [4, 0, 0]}
REGULAR = {"site-1": [9, 7, 5], "site-2": [6, 5, 8], "site-3": [4, 8, 3]}
POOLING_RULES: list[tuple[str, dict[str, Any]]] = [
    ("weighted_mean", {}),
    ("fedprox", {"mu": 0.1}),
    ("scaffold", {}),
    ("scaffold", {"control": "option_2"}),
    ("fedadam", {"lr": 0.1}),
    ("fedyogi", {"lr": 0.1}),
    ("drfa", {"step": 0.1}),
]
"""Rules, other than `temporal`, that can run visit by visit, with their settings."""


class VisitLearner(MixturePatients, SmallLearner):
    """y = w x with another w for every visit; the validation set is of the last one.

    Settings: `counts` {site: [n_1 .. n_T]}, COUNTS where none are given; `raises`, a site, with `exchange`.
    """

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        super().__init__(settings, site, seed)
        self.counts = settings.get("counts", COUNTS)[site]
        draw = torch.Generator().manual_seed(int(site[-1]))
        self.data = [self._draw(count, t, draw) for t, count in enumerate(self.counts)]
        self.val = self._draw(VAL, len(self.counts) - 1, draw)
        self.values = torch.rand(max(self.counts), 2, generator=draw, dtype=torch.float64)
        times = [(t + 1, 200.0 * (t > 0), 200.0 * t) for t, count in enumerate(self.counts) if count]
        self.trail = VisitTrail(len(self.counts), visit_times(times, len(self.counts)))
        self.examples = {"train": sum(self.counts), "val": VAL, "test": VAL}
        self.use_parameter(WIDTH)

    @staticmethod
    def _draw(count: int, visit: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, WIDTH, generator=draw)
        return x, x @ torch.full((WIDTH,), 1.0 + 0.5 * visit) + 0.1 * torch.randn(count, generator=draw)

    def sums_spec(self, sites: int) -> SharedSpec:
        return visit_sums_spec(len(self.counts))

    def loss(self, data: tuple[Tensor, Tensor]) -> Tensor:
        x, y = data
        return (x @ self.w[0] - y).square().mean()

    def _validation(self) -> tuple[State, int]:
        (gradient,) = torch.autograd.grad(self.loss(self.val), self.w)
        return {ADAPTER: gradient}, VAL

    def rows(self, plan: RoundPlan) -> tuple[Tensor, Tensor]:
        if hint := plan.hints.visit:
            return self.data[hint.visit - 1]
        xs, ys = zip(*self.data, strict=True)
        return torch.cat(xs), torch.cat(ys)

    def fit(self, plan: RoundPlan) -> Update:
        if (self.site, plan.round) == (self.settings.get("raises"), self.settings.get("exchange")):
            raise RuntimeError("no disk")
        before = self.w.detach().clone()
        sums = self.trail.receive(plan, {ADAPTER: before}, self._validation)
        data, hint = self.rows(plan), plan.hints.visit
        metrics = {"visit": float(hint.visit)} if hint else {}
        self.terms.begin(plan)
        if len(data[0]):
            metrics["loss"] = self.loss(data).item()
            self._train(data, plan.steps or 3)
        terms, delta = self.terms.finish(), {ADAPTER: self.w.detach() - before}
        sums |= terms.sums
        return Update(delta=delta, examples=len(data[0]), metrics=metrics, sums=sums, factor=terms.factor)

    def _train(self, data: tuple[Tensor, Tensor], steps: int) -> None:
        optimiser = torch.optim.SGD([self.w], lr=LR)
        self.terms.watch(optimiser, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss(data).backward()
            optimiser.step()

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        data = self.rows(plan) if split == "train" else self.val
        return Metrics({"loss": self.loss(data).item()}, len(data[0]))

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = self.trail.state()
        return {**tensors, **self.terms.state()}, values

    def load_local_state(self, tensors: State, values: Any) -> None:
        self.trail.restore(self.terms.restore(tensors), values)
