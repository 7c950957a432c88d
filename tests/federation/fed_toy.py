# SPDX-License-Identifier: Apache-2.0
"""A deterministic learner without data files: linear regression with local bias, momentum and data order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from fed_learner import ADAPTER, SmallLearner
from torch import Tensor

from medflare.core.data_order import drawn
from medflare.core.errors import DataError
from medflare.core.metrics import Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.task_progress import with_progress
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update

SPLITS = ("train", "val", "test")


class ToyLearner(SmallLearner):
    """y = x·w + b with `w` shared (as a LoRA factor's name) and `bias`, `momentum`, `position` local.

    Settings (for tests): `fingerprint`, `hang` {round: seconds}, `slow` {split: seconds}, `die` {round},
    `raises` {round: text}, `bad` {round: kind of broken update}, `width`, `rate`, `sums`, `counter`,
    `features`, `seconds_a_step`; keyed by site under `sites`.
    """

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        super().__init__({**settings, **settings.get("sites", {}).get(site, {})}, site, seed)
        self.width = int(self.settings.get("width", 4))
        self.parameters = {"adapter": self.width, "head": 6}
        generator = torch.Generator().manual_seed(seed + sum(site.encode()))
        rows = 12 + 4 * int("0" + "".join(filter(str.isdigit, site)))
        self.x = torch.randn(rows, self.width, generator=generator)
        self.y = self.x @ torch.arange(1.0, self.width + 1) + 0.1 * torch.randn(rows, generator=generator)
        self.start = torch.randn(self.width, generator=torch.Generator().manual_seed(seed))  # as all sites do
        self.w, self.head = self.start.clone(), torch.zeros(2, 3)
        self.steps = torch.zeros(1, dtype=torch.int64)
        self.bias, self.momentum, self.position = torch.zeros(1), torch.zeros(self.width), 0
        self.fits, self.totals_seen = 0, dict[str, Tensor]()
        self.examples = {split: int(self.settings.get(split, rows)) for split in SPLITS}

    def sums_spec(self, sites: int) -> SharedSpec:
        count: SharedSpec = {"count": ((sites,), torch.float32)} if self.settings.get("sums") else {}
        return count | {name: (tuple(v.shape), v.dtype) for name, v in self._features().items()}

    def _features(self) -> State:
        """The site's first examples as features: of each of them, or as the sums of classes of 1 and 3."""
        features = self.settings.get("features", "none")
        if features == "raw":
            return {"features.raw.rows": self.x[:4].clone()}
        if features == "prototypes":
            sums = torch.stack([self.x[0], self.x[1:4].sum(0)])
            return {"features.prototypes.sum": sums, "features.prototypes.count": torch.tensor([1.0, 3.0])}
        return {}

    def shared(self) -> State:
        counter = {"norm.steps": self.steps} if self.settings.get("counter") else {}
        return {ADAPTER: self.w[None], "head.weight": self.head, **counter}

    def load_shared(self, state: State) -> None:
        check_state(state, self.shared_spec(), self.site)
        self.w, self.head = state[ADAPTER][0].float().clone(), state["head.weight"].float().clone()
        self.steps = state.get("norm.steps", self.steps).clone()

    def fit(self, plan: RoundPlan) -> Update:
        self._misbehave(plan.round)
        self.totals_seen = dict(plan.totals)
        before = self.initial_shared()
        loss = torch.zeros(())
        for _ in with_progress(range(plan.steps or 3)):
            time.sleep(float(self.settings.get("seconds_a_step", 0)))
            batch = [(self.position + i) % len(self.x) for i in range(8)]
            self.position = (self.position + 8) % len(self.x)
            x, error = self.x[batch], self.x[batch] @ self.w + self.bias - self.y[batch]
            loss = (error**2).mean()
            self.momentum = 0.5 * self.momentum + x.T @ error / len(batch)
            self.w = self.w - float(self.settings.get("rate", 0.1)) * self.momentum
            self.head = self.head + 0.01
            self.steps = self.steps + 10
            self.bias = self.bias - 0.05 * error.mean()
        self.fits += 1
        delta = {name: value - before[name] for name, value in self.shared().items()}
        sums = {}
        if self.settings.get("sums"):
            sums["count"] = torch.zeros(plan.hints.sites)
            sums["count"][plan.hints.site_index] = float(len(self.x))
        sums |= self._features()
        update = Update(delta=delta, examples=len(self.x), metrics={"loss": loss.item()}, sums=sums)
        return self._spoil(update, self.settings.get("bad", {}).get(str(plan.round)))

    def _misbehave(self, number: int) -> None:
        time.sleep(float(self.settings.get("hang", {}).get(str(number), 0)))
        once = self.settings.get("die", {}).get(str(number))
        if once and not Path(once).exists():
            Path(once).touch()
            os.kill(os.getpid(), 9)
        text = self.settings.get("raises", {}).get(str(number))
        if text == "DataError":
            raise DataError("patient John Doe has no image")
        if text:
            raise KeyError("patient John Doe")

    def _spoil(self, update: Update, kind: str | None) -> Update:
        """A broken update of the kind a test asks for."""
        if kind == "nan":
            update.delta[ADAPTER][0, 0] = float("nan")
        elif kind == "shape":
            update.delta[ADAPTER] = torch.zeros(1, self.width + 1)
        elif kind == "missing":
            del update.delta["head.weight"]
        elif kind == "extra":
            update.delta["patients"] = torch.zeros(3)
        elif kind == "heavy":
            update.examples = 10**6
        elif kind == "dtype":
            update.delta[ADAPTER] = torch.zeros(1, self.width, dtype=torch.int64)
        elif kind == "infinite metric":
            update.metrics["loss"] = float("inf")
        return update

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        time.sleep(float(self.settings.get("slow", {}).get(split, 0)))
        rows = list(range(len(self.x)))
        if plan.hints.probe:
            rows = drawn(rows, plan.hints.probe, self.site, plan.round)
        rows = rows[: plan.limit]
        if not rows:
            return Metrics()
        return Metrics({"loss": ((self.x[rows] @ self.w - self.y[rows]) ** 2).mean().item()}, len(rows))

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        evaluations = super().finish(plan, folder)
        (folder / "predictions.jsonl").write_text(f"{self.site} {self.bias.item()}", encoding="utf-8")
        return evaluations

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return {"bias": self.bias, "momentum": self.momentum}, {"position": self.position, "fits": self.fits}

    def load_local_state(self, tensors: State, values: Any) -> None:
        self.bias, self.momentum = tensors["bias"].clone(), tensors["momentum"].clone()
        self.position, self.fits = values["position"], values["fits"]
