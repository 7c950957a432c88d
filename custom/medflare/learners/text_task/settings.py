# SPDX-License-Identifier: Apache-2.0
"""Settings that every text task has: adapter, training, and which factors are communicated."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from pydantic import Field, model_validator

from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if
from medflare.core.method import MethodFacts, MethodSettings
from medflare.core.plan import RoundPlan
from medflare.differential_privacy.settings import PrivacySettings, private_settings_problem
from medflare.learners.optim import CosinePart
from medflare.learners.setting_types import (
    BatchSize,
    EvaluationBatch,
    LearningRate,
    Passes,
    PositiveCount,
    Rate,
    RoundShare,
    WeightDecay,
)
from medflare.models.adapters.base import AdapterSettings
from medflare.models.adapters.lora import ALL_PROJECTIONS, LoraChoice, LoraSettings
from medflare.models.adapters.registry import PEFT_METHODS, PeftChoice, effective_settings, unused_lora

Sharing = Literal["factors", "freeze_a", "fedsa", "stack"]

SHARING: dict[str, dict[str, Any]] = {
    "freeze_a": {"sharing": "freeze_a"},
    "fedsa_lora": {"sharing": "fedsa"},
    "stack": {"sharing": "stack"},
}
"""Variants of all text tasks: ways of sharing LoRA's factors."""
INSTRUCT: dict[str, Any] = {
    "optimiser": {"batch": 8, "lr": 5e-4},
    "lora": {"rank": 16, "lora_alpha": 32, "targets": ALL_PROJECTIONS, "dropout": 0.0},
    "local_epochs": 1,
    "max_tokens": 400,
    "eval_batch": 16,
    "eval_limit": 0,
}
"""Preset of all text tasks for a pretrained instruction model of 0.1 to 1 billion parameters on processors.

A tenth to a quarter of the embedded model's rate; no dropout, a sixth of a step there; after a round the loss
alone, as writing is slow. A model of 7 billion and more has the paper's values (preset `paper`)."""
INSTRUCT_JOB: dict[str, Any] = {"deadline": 6 * 3600.0}
"""Beside the method's settings: a round of real notes takes longer than one of the embedded model."""
CLOCKED_INSTRUCT_JOB: dict[str, Any] = INSTRUCT_JOB | {"simulated_deadline": 3600.0}
"""Of DDCS's jobs, whose latencies are simulated: only the time that really passes is longer."""
PRETRAINED_PRESETS = ("instruct", "paper")
"""Of all text tasks, by the size of a pretrained model."""
NOISE_ON_BOTH = (
    "settings.dp with sharing 'factors' puts noise on both factors of LoRA, and the product multiplies one "
    "noise by the other: sharing 'freeze_a' learns more at the same epsilon."
)
DDCS_PAPER_JOB: dict[str, Any] = {
    "latency_profiles": {},
    "uplink": "float32",
    "downlink": "float32",
}
"""Of DDCS's jobs: measured latencies, and updates as they are."""
DDCS_PAPER_RULES: dict[str, dict[str, Any]] = {
    "ddcs": {
        "rule_settings.draws": 5,
        "rule_settings.mode": "factor_delta",
        "rule_settings.most_variance": None,
        "rule_settings.age_bonus": 0.0,
    }
}
"""S = 5, no cap on the variance and no age bonus; the floor φ stays, as without it the printed problem has
one client for its answer (DD-1)."""
DDCS_PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"lora": {"rank": 8, "lora_alpha": 16}, "optimiser": {"gradient_checkpointing": True}},
    "instruct": INSTRUCT,
}
"""Preset -> settings that it changes in DDCS's tasks; rank 8 is DD-10's, the slides name none."""


def text_task_facts(summary: str, source: str) -> MethodFacts:
    """Return the facts of a method that trains a language model's adapter on a text task."""
    metrics = ("loss", "steps", "tokens", "seconds")
    return MethodFacts(summary=summary, source=source, metrics=metrics, lora=True, scored=True, judged=True)


class AdamWSettings(Settings):
    """AdamW, anew in every round, with a linear warm-up and a cosine."""

    batch: BatchSize = 64
    lr: LearningRate = 2e-4
    warmup: RoundShare = Field(default=0.05, description="share of the cosine with a rising rate")
    cosine_over: Literal["round", "run"] = Field(
        default="round",
        description="round: rate and warm-up begin anew in every exchange. run: one cosine over all",
    )
    weight_decay: WeightDecay = 0.01
    clip_norm: Rate = Field(default=1.0, description="largest gradient norm")

    @property
    def step_size(self) -> int:
        """Examples of one optimiser step."""
        return self.batch

    def cosine_part(self, plan: RoundPlan) -> CosinePart:
        """Return what a round has of the cosine."""
        if self.cosine_over == "round":
            return CosinePart(warmup=self.warmup)
        rounds = max(plan.rounds, plan.round + 1)
        return CosinePart(plan.round / rounds, (plan.round + 1) / rounds, self.warmup)


class OptimiserSettings(AdamWSettings):
    """AdamW of a language model's adapter; defaults are those of Fed-MedLoRA's paper."""

    batch: BatchSize = 4
    accumulate: PositiveCount = Field(default=1, description="batches of one optimiser step")
    weight_decay: WeightDecay = 0.0
    gradient_checkpointing: bool = Field(
        default=False, description="compute activations again in the backward pass: less memory, more time"
    )

    @property
    def step_size(self) -> int:
        return self.batch * self.accumulate


class RecordsSettings(MethodSettings):
    """Settings of every method that learns from the records of a text task."""

    optimiser: AdamWSettings = AdamWSettings()
    local_epochs: Passes = 2
    eval_batch: EvaluationBatch = 32
    eval_limit: int | None = Field(
        None, ge=0, description="validation records tested after a round; 0 for the loss alone, null for all"
    )

    @property
    def learning_rate(self) -> float:
        return self.optimiser.lr

    @property
    def passes(self) -> int:
        return self.local_epochs


class TextTaskSettings(RecordsSettings):
    """A frozen language model with an adapter that answers prompts; defaults are Fed-MedLoRA's."""

    lora: LoraSettings = LoraSettings(rank=16, lora_alpha=64, targets=ALL_PROJECTIONS, dropout=0.05)
    peft: PeftChoice = Field(
        LoraChoice(), description="the method; `lora` holds the numbers of LoRA, and the targets of all"
    )
    optimiser: OptimiserSettings = OptimiserSettings()
    sharing: Sharing = Field(
        "factors",
        description="what is sent. factors: A and B. freeze_a: B, A is made from the seed. fedsa: A, "
        "B stays. stack: A and B, the server sends back what it stacked (rule lora_stack)",
    )
    max_tokens: int = Field(default=800, ge=64, description="of a question and its answer")
    dp: PrivacySettings | None = Field(
        default=None, description="train with differential privacy for patients; without it there is none"
    )

    @property
    def adapter(self) -> AdapterSettings:
        """The settings of the adapter: `peft`, or `lora` where that is the method."""
        return effective_settings(self.peft, self.lora)

    @property
    def without_effect(self) -> dict[str, str]:
        why, names = "dp draws and bounds patients", "optimiser.clip_norm optimiser.accumulate"
        dp = idle_if((self.dp is not None, why, names))
        return unused_lora(self.peft) | dp

    @property
    def peft_method(self) -> str:
        """The adapter's method, a name in `models.adapters.registry.PEFT_METHODS`."""
        return self.peft.method

    @property
    def lora_sharing(self) -> str:
        """`sharing`, where the adapter is LoRA."""
        return self.sharing if self.peft_method == "lora" else "none"

    def most_answer_tokens(self, tokens: int) -> int:
        """Return how many of a row's `tokens` can be its answer, of which alone logits are made."""
        return tokens

    @property
    def sends_sums(self) -> dict[str, str]:
        """Settings by which updates carry declared sums -> what would send none."""
        adalora = self.peft_method == "adalora"
        return {"settings.peft.method 'adalora'": "another method"} if adalora else {}

    @model_validator(mode="after")
    def _fits_together(self) -> TextTaskSettings:
        method = self.peft_method
        if self.sharing != "factors" and method != "lora":
            raise ValueError(
                f"sharing '{self.sharing}' is about LoRA's factors, and peft.method '{method}' has none: "
                "leave sharing out, or use method 'lora'"
            )
        if self.optimiser.gradient_checkpointing and not PEFT_METHODS[method].gradient_checkpointing:
            raise ValueError(
                f"peft.method '{method}' puts keys and values into every layer, which gradient checkpointing "
                "drops without a word: set optimiser.gradient_checkpointing to false"
            )
        if self.dp is not None:
            problem = private_settings_problem(
                checkpointing=self.optimiser.gradient_checkpointing,
                sums=self.sends_sums,
                adapter=method,
                adapters=[name for name, row in PEFT_METHODS.items() if row.per_example],
            )
            if problem:
                raise ValueError(problem)
            if method == "lora" and self.sharing == "factors":
                warnings.warn(NOISE_ON_BOTH, stacklevel=2)
        return self
