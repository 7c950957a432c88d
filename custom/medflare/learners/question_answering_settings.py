# SPDX-License-Identifier: Apache-2.0
"""Settings of question answering (DDCS, algorithms.md 6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from medflare.learners.facts import MethodFacts
from medflare.learners.presets import resolve_settings
from medflare.learners.text_task_settings import TextTaskSettings

__all__ = ["FACTS", "PRESETS", "VARIANTS", "QuestionSettings", "resolve"]


class QuestionSettings(TextTaskSettings):
    """Everything of question answering that a job can choose; E = 1 pass a round (DD-10)."""

    variant: str = "question_answering"
    scoring: Literal["options", "letters"] = Field(
        "options",
        description="options: learns the right option's text after the question, and is scored by every "
        "option's. letters: the options stand in the prompt; learns and is scored by letters",
    )
    per_token: bool = Field(
        default=False,
        description="score an option by the mean log-likelihood of its tokens, not by their sum",
    )
    local_epochs: int = Field(
        default=1, ge=1, description="passes in a round, unless the job says steps or fraction"
    )
    eval_limit: int | None = Field(
        default=None, ge=0, description="validation questions asked after a round; 0 for the loss alone"
    )


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"lora": {"rank": 8, "lora_alpha": 16}, "optimiser": {"gradient_checkpointing": True}},
}
"""What `preset` changes before a job's own settings apply; rank 8 is DD-10's, the slides tell none."""

VARIANTS: dict[str, dict[str, Any]] = {
    "question_answering": {},
    "letters": {"scoring": "letters"},
    "freeze_a": {"sharing": "freeze_a"},
    "fedsa_lora": {"sharing": "fedsa"},
    "stack": {"sharing": "stack"},
}
"""Named combinations: the method, letters in place of texts, and ways of sharing LoRA's factors."""

FACTS = MethodFacts(
    summary="Question answering: LoRA on a frozen language model that chooses the likeliest option.",
    source="DDCS (paper 004), Tasks; algorithms.md 6.4; DD-4, DD-10",
    metrics=("loss", "steps", "tokens", "seconds"),
    lora=True,
    scored=True,
    judged=True,
)


def resolve(given: Mapping[str, Any]) -> QuestionSettings:
    """Preset, then what the job says, then its variant; all errors together."""
    return resolve_settings(QuestionSettings, given, PRESETS, VARIANTS)
