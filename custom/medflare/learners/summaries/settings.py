# SPDX-License-Identifier: Apache-2.0
"""Settings of summarisation (DDCS, algorithms.md 6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from medflare.core.presets import resolve_settings
from medflare.learners.facts import MethodFacts
from medflare.learners.text_task.ddcs_settings import PRESETS, SHARING, DdcsTaskSettings
from medflare.tasks.summaries.summaries import WritingSettings

__all__ = ["FACTS", "PRESETS", "VARIANTS", "SummarySettings", "resolve"]


class SummarySettings(DdcsTaskSettings):
    """Everything of summarisation that a job can choose."""

    variant: str = "summarisation"
    writing: WritingSettings = WritingSettings()
    eval_limit: int | None = Field(
        16, ge=0, description="validation texts summarised after a round; 0 for the loss alone, null for all"
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "summarisation": {},
    **SHARING,
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
