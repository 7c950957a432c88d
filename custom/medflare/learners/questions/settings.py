# SPDX-License-Identifier: Apache-2.0
"""Settings of question answering (DDCS)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from medflare.core.method import Method
from medflare.learners.setting_types import Passes
from medflare.learners.text_task.settings import (
    CLOCKED_INSTRUCT_JOB,
    DDCS_PAPER_JOB,
    DDCS_PAPER_RULES,
    DDCS_PRESETS,
    PRETRAINED_PRESETS,
    SHARING,
    TextTaskSettings,
    text_task_facts,
)

LETTER = 4
"""Tokens allowed for a letter and the end mark."""


class QuestionSettings(TextTaskSettings):
    """Everything of question answering that a job can choose; E = 1 pass a round (DD-10)."""

    local_epochs: Passes = 1
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

    def most_answer_tokens(self, tokens: int) -> int:
        """Return those of a letter and its end mark, or of an option, which may be any text."""
        return LETTER if self.scoring == "letters" else tokens


VARIANTS: dict[str, dict[str, Any]] = {
    "question_answering": {},
    "letters": {"scoring": "letters"},
    **SHARING,
}
"""Named combinations: the method, letters in place of texts, and ways of sharing LoRA's factors."""

METHOD = Method(
    name="question_answering",
    task="questions",
    settings=QuestionSettings,
    presets=DDCS_PRESETS,
    job_presets={"paper": DDCS_PAPER_JOB, "instruct": CLOCKED_INSTRUCT_JOB},
    rule_presets={"paper": DDCS_PAPER_RULES},
    pretrained_presets=PRETRAINED_PRESETS,
    several_devices=True,
    variants=VARIANTS,
    facts=text_task_facts(
        summary="Question answering: LoRA on a frozen language model that chooses the likeliest option.",
        source="DDCS (paper 004), Tasks; DD-4, DD-10",
    ),
    build="medflare.learners.questions.learner:build",
    result_file="question_answering.json",
    footprint="medflare.learners.text_task.footprint:training_step",
)
