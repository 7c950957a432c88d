# SPDX-License-Identifier: Apache-2.0
"""Settings of Fed-MedLoRA: prompts, adapter, training, and which factors are communicated."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from medflare.core.method import Method
from medflare.learners.setting_types import Sentences
from medflare.learners.text_task.settings import (
    INSTRUCT,
    INSTRUCT_JOB,
    PRETRAINED_PRESETS,
    SHARING,
    TextTaskSettings,
    text_task_facts,
)


class ExtractionSettings(TextTaskSettings):
    """Everything of Fed-MedLoRA that a job can choose; defaults are the paper's."""

    variant: str = "fed_medlora"
    sentences: Sentences = 1
    format: Literal["html", "json"] = Field(
        "html", description="of answers. html: the text with marks around entities. json: a list of them"
    )
    decoding: Literal["free", "copy"] = Field(
        "free",
        description="how answers are written in tests. free: as the model likes. copy: nothing but the text "
        "with marks, which can always be read (ML-16; format html)",
    )
    eval_limit: int = Field(
        4, ge=0, description="validation notes extracted after a round; 0 for the loss alone"
    )

    def most_answer_tokens(self, tokens: int) -> int:
        """Return two thirds: a prompt holds the text of a window, an answer at most twice that."""
        return math.ceil(tokens * 2 / 3)


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"optimiser": {"gradient_checkpointing": True}},
    "instruct": {**INSTRUCT, "optimiser": {"batch": 8, "lr": 1e-3}, "decoding": "copy", "eval_batch": 64},
}
"""Preset -> settings that it changes before a job's own settings apply. The rate of `instruct` was chosen on
validation notes (docs/results/real_notes.md), for this task and a model of 135 million parameters."""

MOMENTUM: dict[str, Any] = {"exchanges": 4, "rule": "fedavgm", "rule_settings.beta1": 0.6}
"""Four exchanges of updates in each round's passes, and server momentum. The two values were set once and
not tuned; docs/results/real_notes.md has what they changed on real notes."""

VARIANTS: dict[str, dict[str, Any]] = {"fed_medlora": {}, **SHARING}
"""Named combinations: the method, and ways of sharing LoRA's factors."""

METHOD = Method(
    name="fed_medlora",
    task="extraction",
    settings=ExtractionSettings,
    presets=PRESETS,
    job_presets={
        "paper": {
            "num_rounds": 2,
            "uplink": "float32",
            "downlink": "float32",
        },
        "instruct": INSTRUCT_JOB,
    },
    rule_presets={
        "paper": {"weighted_mean": {"rule_settings.weighting": "examples"}},  # the released code: "tokens"
        "instruct": {"weighted_mean": MOMENTUM},
    },
    pretrained_presets=PRETRAINED_PRESETS,
    several_devices=True,
    variants=VARIANTS,
    facts=text_task_facts(
        summary="Fed-MedLoRA: LoRA on a frozen language model that marks entities and modifiers in notes.",
        source="Fed-MedLoRA (paper 002); ML-1 to ML-15",
    ),
    build="medflare.learners.extraction.learner:build",
    result_file="extraction.json",
    footprint="medflare.learners.text_task.footprint:training_step",
)
