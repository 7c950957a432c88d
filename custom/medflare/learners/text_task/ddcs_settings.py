# SPDX-License-Identifier: Apache-2.0
"""What the settings of DDCS's two tasks, questions and summaries, have in common."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from medflare.learners.text_task.settings import TextTaskSettings

PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"lora": {"rank": 8, "lora_alpha": 16}, "optimiser": {"gradient_checkpointing": True}},
}
"""What `preset` changes before a job's own settings apply; rank 8 is DD-10's, the slides name none."""

SHARING: dict[str, dict[str, Any]] = {
    "freeze_a": {"sharing": "freeze_a"},
    "fedsa_lora": {"sharing": "fedsa"},
    "stack": {"sharing": "stack"},
}
"""Variants of both: ways of sharing LoRA's factors."""


class DdcsTaskSettings(TextTaskSettings):
    """E = 1 pass a round (DD-10)."""

    local_epochs: int = Field(
        default=1, ge=1, description="passes in a round, unless the job says steps or fraction"
    )
