# SPDX-License-Identifier: Apache-2.0
"""The base of the small learners of these tests, and how workers build them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medflare.core.hints import RoundHints
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import Estimate, EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.learners.client_terms import ClientTerms, requested_sums

ADAPTER = "adapter.base_model.model.layer.lora_A.weight"
"""Name of the tensor that is communicated: a LoRA factor, so that the server writes a PEFT folder of it."""


class SmallLearner:
    """One site that trains the parameter ADAPTER of shape (1, width) without data files or a backbone.

    Attributes:
        settings: of the method; `fingerprint` of the pretended backbone.
        examples: of the splits train, val and test. parameters: their number by part of the model.
    """

    width: int
    examples: dict[str, int]
    parameters: dict[str, int]
    patient_profiles: Any = None
    patient_privacy: Any = None

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        self.settings, self.site, self.seed = settings, site, seed
        self.terms: ClientTerms | None = None

    def use_parameter(self, width: int) -> None:
        """Begin at zero; what a rule asks of every optimiser step is done by `terms`."""
        self.width, self.parameters = width, {"adapter": width}
        self.w = nn.Parameter(torch.zeros(1, width))
        self.terms = ClientTerms(self.site, lambda: {ADAPTER: self.w})

    def describe(self) -> SiteDescription:
        adapter = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "base_model_name_or_path": "toy"}
        return SiteDescription.model_validate(
            {
                "backbone": {"name": "toy", "fingerprint": self.settings.get("fingerprint", "f0")},
                "parameters": self.parameters,
                "adapter_config": adapter,
                "export": {"file": "report_generator", "kind": "toy"},
                "examples": self.examples,
            }
        )

    def shared(self) -> State:
        """The tensors that are communicated, not copied."""
        return {ADAPTER: self.w.detach()}

    def shared_spec(self) -> SharedSpec:
        return {name: (tuple(value.shape), value.dtype) for name, value in self.shared().items()}

    def sums_spec(self, sites: int) -> SharedSpec:
        return {}

    def requested_sums(self, hints: RoundHints) -> SharedSpec:
        return requested_sums(self.terms, hints)

    def initial_shared(self) -> State:
        return {name: value.clone() for name, value in self.shared().items()}

    def load_shared(self, state: State) -> None:
        check_state(state, self.shared_spec(), self.site)
        with torch.no_grad():
            self.w.copy_(state[ADAPTER])

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        raise NotImplementedError

    def metric_names(self) -> MetricNames:
        return MetricNames(validation=["loss"], tested={"generic": ["loss"]})

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        loss = self.evaluate("test", plan)["loss"]
        (folder / "predictions.jsonl").write_text(self.site, encoding="utf-8")
        return [
            EvaluationRecord(
                site=self.site,
                role="participant",
                adapter="generic",
                split="test",
                studies=self.examples["test"],
                metrics={"loss": Estimate(value=loss, low=loss, high=loss)},
                predictions="predictions.jsonl",
            )
        ]

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return self.terms.state(), {}

    def load_local_state(self, tensors: State, values: Any) -> None:
        self.terms.restore(tensors)


def builder(learner: type[SmallLearner]) -> Callable[..., SmallLearner]:
    """Return what a worker builds its learner with; all they need of a site is its name."""

    def build(
        method: str, settings: dict[str, Any], site: Any, seed: int, cache: Path | None
    ) -> SmallLearner:
        return learner(settings, site.name, seed)

    return build
