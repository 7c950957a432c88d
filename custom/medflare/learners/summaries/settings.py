# SPDX-License-Identifier: Apache-2.0
"""Settings of summarisation (DDCS)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from medflare.core.method import Method
from medflare.learners.setting_types import Passes
from medflare.learners.text_task.settings import (
    CLOCKED_INSTRUCT_JOB,
    DDCS_PAPER_JOB,
    DDCS_PAPER_RULES,
    DDCS_PRESETS,
    INSTRUCT,
    PRETRAINED_PRESETS,
    SHARING,
    TextTaskSettings,
    text_task_facts,
)
from medflare.tasks.summaries.summariser import WritingSettings


class SummarySettings(TextTaskSettings):
    """Everything of summarisation that a job can choose; E = 1 pass a round (DD-10)."""

    local_epochs: Passes = 1
    variant: str = "summarisation"
    writing: WritingSettings = WritingSettings()
    eval_limit: int | None = Field(
        16, ge=0, description="validation texts summarised after a round; 0 for the loss alone, null for all"
    )


VARIANTS: dict[str, dict[str, Any]] = {"summarisation": {}, **SHARING}
"""Named combinations: the method, and ways of sharing LoRA's factors."""

METHOD = Method(
    name="summarisation",
    task="summaries",
    settings=SummarySettings,
    presets=DDCS_PRESETS | {"instruct": INSTRUCT | {"writing": {"beams": 1, "max_new_tokens": 60}}},
    job_presets={"paper": DDCS_PAPER_JOB, "instruct": CLOCKED_INSTRUCT_JOB},
    rule_presets={"paper": DDCS_PAPER_RULES},
    pretrained_presets=PRETRAINED_PRESETS,
    several_devices=True,
    variants=VARIANTS,
    facts=text_task_facts(
        summary="Summarisation: LoRA on a frozen language model that writes the impression of findings.",
        source="DDCS (paper 004), Tasks; DD-4, DD-10",
    ),
    build="medflare.learners.summaries.learner:build",
    result_file="summarisation.json",
    footprint="medflare.learners.text_task.footprint:training_step",
)
