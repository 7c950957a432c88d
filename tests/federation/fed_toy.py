# SPDX-License-Identifier: Apache-2.0
"""A deterministic learner without data files: linear regression with local bias, momentum and data order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import DataError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import Estimate, EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update

SPLITS = ("train", "val", "test")
ADAPTER = "adapter.base_model.model.layer.lora_A.weight"


class ToyLearner:
    """y = x·w + b with `w` shared (as a LoRA factor's name) and `bias`, `momentum`, `position` local.

    Settings (for tests): `fingerprint`, `hang` {round: seconds}, `slow` {split: seconds}, `die` {round},
    `raises` {round: text}, `bad` {round: kind of broken update}, `width`, `sums`, `counter`; keyed by site
    under `sites`.
    """

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        self.settings = {**settings, **settings.get("sites", {}).get(site, {})}
        self.site, self.width = site, int(self.settings.get("width", 4))
        generator = torch.Generator().manual_seed(seed + sum(site.encode()))
        rows = 12 + 4 * int("0" + "".join(filter(str.isdigit, site)))
        self.x = torch.randn(rows, self.width, generator=generator)
        self.y = self.x @ torch.arange(1.0, self.width + 1) + 0.1 * torch.randn(rows, generator=generator)
        self.start = torch.randn(self.width, generator=generator)
        self.w, self.head = self.start.clone(), torch.zeros(2, 3)
        self.steps = torch.zeros(1, dtype=torch.int64)
        self.bias, self.momentum, self.position = torch.zeros(1), torch.zeros(self.width), 0
        self.fits, self.totals_seen = 0, dict[str, Tensor]()

    def describe(self) -> SiteDescription:
        return SiteDescription.model_validate(
            {
                "backbone": {"name": "toy", "fingerprint": self.settings.get("fingerprint", "f0")},
                "parameters": {"adapter": self.width, "head": 6},
                "adapter_config": {
                    "peft_type": "LORA",
                    "r": 1,
                    "lora_alpha": 2,
                    "base_model_name_or_path": "toy",
                },
                "export": {"file": "report_generator", "kind": "toy"},
                "examples": {split: int(self.settings.get(split, len(self.x))) for split in SPLITS},
            }
        )

    def shared_spec(self) -> SharedSpec:
        return {n: (tuple(v.shape), v.dtype) for n, v in self._shared().items()}

    def sums_spec(self, sites: int) -> SharedSpec:
        return {"count": ((sites,), torch.float32)} if self.settings.get("sums") else {}

    def _shared(self) -> State:
        counter = {"norm.steps": self.steps} if self.settings.get("counter") else {}
        return {ADAPTER: self.w[None], "head.weight": self.head, **counter}

    def initial_shared(self) -> State:
        return {name: value.clone() for name, value in self._shared().items()}

    def load_shared(self, state: State) -> None:
        check_state(state, self.shared_spec(), self.site)
        self.w, self.head = state[ADAPTER][0].float().clone(), state["head.weight"].float().clone()
        self.steps = state.get("norm.steps", self.steps).clone()

    def fit(self, plan: RoundPlan) -> Update:
        self._misbehave(plan.round)
        self.totals_seen = dict(plan.totals)
        before = self.initial_shared()
        loss = torch.zeros(())
        for _ in range(plan.steps or 3):
            batch = [(self.position + i) % len(self.x) for i in range(8)]
            self.position = (self.position + 8) % len(self.x)
            x, error = self.x[batch], self.x[batch] @ self.w + self.bias - self.y[batch]
            loss = (error**2).mean()
            self.momentum = 0.5 * self.momentum + x.T @ error / len(batch)
            self.w = self.w - 0.1 * self.momentum
            self.head = self.head + 0.01
            self.steps = self.steps + 10
            self.bias = self.bias - 0.05 * error.mean()
        self.fits += 1
        delta = {name: value - before[name] for name, value in self._shared().items()}
        sums = {}
        if self.settings.get("sums"):
            sums["count"] = torch.zeros(plan.hints.sites)
            sums["count"][plan.hints.site_index] = float(len(self.x))
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

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        time.sleep(float(self.settings.get("slow", {}).get(split, 0)))
        return {"loss": ((self.x @ self.w - self.y) ** 2).mean().item()}

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        (folder / "predictions.jsonl").write_text(f"{self.site} {self.bias.item()}", encoding="utf-8")
        loss = self.evaluate("test", plan)["loss"]
        return [
            EvaluationRecord(
                site=self.site,
                role="participant",
                adapter="generic",
                split="test",
                studies=len(self.x),
                metrics={"loss": Estimate(value=loss, low=loss, high=loss)},
                predictions="predictions.jsonl",
            )
        ]

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return {"bias": self.bias, "momentum": self.momentum}, {"position": self.position, "fits": self.fits}

    def load_local_state(self, tensors: State, values: Any) -> None:
        self.bias, self.momentum = tensors["bias"].clone(), tensors["momentum"].clone()
        self.position, self.fits = values["position"], values["fits"]


def build_toy(method: str, settings: dict[str, Any], site: Any, seed: int, cache: Path | None) -> ToyLearner:
    """A builder for workers; the site's name stands in for its cohort."""
    return ToyLearner(settings, str(site), seed)
