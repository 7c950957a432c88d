# SPDX-License-Identifier: Apache-2.0
"""Settings of question answering (DDCS, algorithms.md 6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from medflare.core.presets import resolve_settings
from medflare.learners.facts import MethodFacts
from medflare.learners.text_task.ddcs_settings import PRESETS, SHARING, DdcsTaskSettings

__all__ = ["FACTS", "PRESETS", "VARIANTS", "QuestionSettings", "resolve"]


class QuestionSettings(DdcsTaskSettings):
    """Everything of question answering that a job can choose."""

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
    eval_limit: int | None = Field(
        default=None, ge=0, description="validation questions asked after a round; 0 for the loss alone"
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "question_answering": {},
    "letters": {"scoring": "letters"},
    **SHARING,
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
