# SPDX-License-Identifier: Apache-2.0
"""Sites of linear regression whose answer drifts from visit to visit: learners for tests of temporal
rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.metrics import Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.learners.fedtar.visit_sums import VisitTrail, visit_sums_spec, visit_times
from mixture_patients import MixturePatients

WIDTH = 4


class VisitSite(MixturePatients):
    """y = w x with an own w for every visit; `counts` are n_{k,t}, and the validation set is of the last
    visit.

    lr: of full gradient descent; steps: in an exchange.
    """

    def __init__(
        self, counts: list[int], drift: float, seed: int, lr: float = 0.05, steps: int = 5, val: int = 12
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.counts, self.lr, self.steps = counts, lr, steps
        truth = [torch.ones(WIDTH).double() * (1 + drift * t) for t in range(len(counts))]
        self.data = [self._draw(n, w, draw) for n, w in zip(counts, truth, strict=True)]
        self.val = self._draw(val, truth[-1], draw)
        self.values = torch.rand(sum(counts) or 1, 2, generator=draw, dtype=torch.float64)
        times = visit_times(
            [(t + 1, 200.0 * (t > 0), 200.0 * t) for t, n in enumerate(counts) if n], len(counts)
        )
        self.trail = VisitTrail(len(counts), times)
        self.w = torch.zeros(WIDTH, dtype=torch.float64)
        self.seen: list[State] = []

    @staticmethod
    def _draw(count: int, w: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, WIDTH, generator=draw, dtype=torch.float64)
        return x, x @ w + 0.1 * torch.randn(count, generator=draw, dtype=torch.float64)

    def describe(self) -> SiteDescription:
        counts = {"train": sum(self.counts), "val": len(self.val[0])}
        return SiteDescription(backbone=BackboneFacts(name="toy", fingerprint="f0"), examples=counts)

    def shared_spec(self) -> SharedSpec:
        return {"w": ((WIDTH,), torch.float64)}

    def sums_spec(self, sites: int) -> SharedSpec:
        return visit_sums_spec(len(self.counts))

    def initial_shared(self) -> State:
        return {"w": torch.zeros(WIDTH, dtype=torch.float64)}

    def load_shared(self, state: State) -> None:
        self.w = state["w"].clone()

    def loss(self, w: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        x, y = data
        return (x @ w - y).square().mean()

    def validation_gradient(self) -> tuple[State, int]:
        w = self.w.clone().requires_grad_()
        (g,) = torch.autograd.grad(self.loss(w, self.val), w)
        return {"w": g}, len(self.val[0])

    def rows(self, plan: RoundPlan) -> tuple[Tensor, Tensor]:
        """The data of the visit that is asked for, or of all."""
        if hint := plan.hints.visit:
            return self.data[hint.visit - 1]
        xs, ys = zip(*self.data, strict=True)
        return torch.cat(xs), torch.cat(ys)

    def fit(self, plan: RoundPlan) -> Update:
        received = {"w": self.w.clone()}
        self.seen.append(received)
        sums = self.trail.receive(plan, received, self.validation_gradient)
        data, w = self.rows(plan), self.w.clone()
        for _ in range(self.steps if len(data[0]) else 0):
            w.requires_grad_()
            (g,) = torch.autograd.grad(self.loss(w, data), w)
            w = (w - self.lr * g).detach()
        metrics = {"visit": float(plan.hints.visit.visit)} if plan.hints.visit else {}
        return Update(delta={"w": w - received["w"]}, examples=len(data[0]), metrics=metrics, sums=sums)

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        return Metrics({"loss": float(self.loss(self.w, self.val))}, len(self.val[0]))

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return []

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return self.trail.state()

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.trail.restore(tensors, values)
