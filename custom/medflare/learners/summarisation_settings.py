# SPDX-License-Identifier: Apache-2.0
"""Settings of summarisation (DDCS, algorithms.md 6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from medflare.answering.summaries import WritingSettings
from medflare.learners.facts import MethodFacts
from medflare.learners.presets import resolve_settings
from medflare.learners.text_task_settings import TextTaskSettings

__all__ = ["FACTS", "PRESETS", "VARIANTS", "SummarySettings", "resolve"]


class SummarySettings(TextTaskSettings):
    """Everything of summarisation that a job can choose; E = 1 pass a round (DD-10)."""

    variant: str = "summarisation"
    writing: WritingSettings = WritingSettings()
    local_epochs: int = Field(
        default=1, ge=1, description="passes in a round, unless the job says steps or fraction"
    )
    eval_limit: int | None = Field(
        16, ge=0, description="validation texts summarised after a round; 0 for the loss alone, null for all"
    )


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"lora": {"rank": 8, "lora_alpha": 16}, "optimiser": {"gradient_checkpointing": True}},
}
"""What `preset` changes before a job's own settings apply; rank 8 is DD-10's, the slides tell none."""

VARIANTS: dict[str, dict[str, Any]] = {
    "summarisation": {},
    "freeze_a": {"sharing": "freeze_a"},
    "fedsa_lora": {"sharing": "fedsa"},
    "stack": {"sharing": "stack"},
}
"""Named combinations: the method, and ways of sharing LoRA's factors."""

FACTS = MethodFacts(
    summary="Summarisation: LoRA on a frozen language model that writes the impression of findings.",
    source="DDCS (paper 004), Tasks; algorithms.md 6.4; DD-4, DD-10",
    metrics=("loss", "steps", "tokens", "seconds"),
    lora=True,
    scored=True,
    judged=True,
)


def resolve(given: Mapping[str, Any]) -> SummarySettings:
    """Preset, then what the job says, then its variant; all errors together."""
    return resolve_settings(SummarySettings, given, PRESETS, VARIANTS)
