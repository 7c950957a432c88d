# SPDX-License-Identifier: Apache-2.0
"""Settings of Fed-MedLoRA: prompts, adapter, training, and which factors travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from medflare.config import Settings
from medflare.learners.presets import resolve_settings
from medflare.learners.text_training import OptimiserSettings
from medflare.models.adapters import LoraSettings

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Sharing = Literal["factors", "freeze_a", "fedsa", "stack"]


class ExtractionSettings(Settings):
    """Everything of Fed-MedLoRA that a job can choose; defaults are the paper's (algorithms.md 4.1)."""

    preset: Literal["recommended", "paper"] = "recommended"
    variant: str = "fed_medlora"
    lora: LoraSettings = LoraSettings(rank=16, lora_alpha=64, targets=ALL_PROJECTIONS, dropout=0.05)
    optimiser: OptimiserSettings = OptimiserSettings()
    sharing: Sharing = Field(
        "factors",
        description="factors: A and B travel. freeze_a: A is made from the seed, B travels. fedsa: A "
        "travels, B stays. stack: A and B travel, the server sends back what it stacked (rule lora_stack)",
    )
    local_epochs: int = Field(2, ge=1, description="passes in a round, unless the job says steps or fraction")
    max_tokens: int = Field(800, ge=64, description="of a question and its answer")
    sentences: int = Field(1, ge=1, description="of a window; more keep relations across sentences")
    format: Literal["html", "json"] = "html"
    eval_batch: int = Field(32, ge=1)
    eval_limit: int = Field(
        4, ge=0, description="validation notes extracted after a round; 0 for the loss alone"
    )

    @model_validator(mode="after")
    def _one_batch_at_least(self) -> ExtractionSettings:
        if self.optimiser.batch < 1 or self.optimiser.accumulate < 1:
            raise ValueError("optimiser.batch and optimiser.accumulate must be 1 or more")
        return self


PRESETS: dict[str, dict[str, Any]] = {"recommended": {}, "paper": {"sentences": 1, "format": "html"}}
"""What `preset` changes before a job's own settings apply (algorithms.md 1.8)."""

VARIANTS: dict[str, dict[str, Any]] = {
    "fed_medlora": {},
    "fedsa_lora": {"sharing": "fedsa"},
    "freeze_a": {"sharing": "freeze_a"},
    "stack": {"sharing": "stack"},
}
"""Named combinations: the method, and FedSA-LoRA (7.8)."""


def resolve(given: Mapping[str, Any]) -> ExtractionSettings:
    """Preset, then what the job says, then its variant; all errors together."""
    return resolve_settings(ExtractionSettings, given, PRESETS, VARIANTS)
