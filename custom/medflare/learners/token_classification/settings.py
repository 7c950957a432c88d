# SPDX-License-Identifier: Apache-2.0
"""Settings of the encoder baseline of Fed-MedLoRA."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from medflare.core.method import Method, MethodFacts
from medflare.learners.setting_types import EvaluationBatch, Passes, Sentences
from medflare.learners.text_task.settings import INSTRUCT_JOB, RecordsSettings
from medflare.models.encoder_folder import TextEncoderSettings


class TaggerSettings(RecordsSettings):
    """Everything of the baseline that a job can choose; defaults are the paper's."""

    variant: str = "token_classification"
    encoder: TextEncoderSettings = TextEncoderSettings()
    freeze_words: bool = Field(
        default=False,
        description="word embeddings neither learn nor are sent, as in the released configuration",
    )
    local_epochs: Passes = Field(
        10,
        description="passes in a round, unless the job says steps or fraction; the paper's 10 passes in all "
        "are 10 / R in each of R rounds (ML-6)",
    )
    max_tokens: int = Field(default=512, ge=16, description="of an input")
    sentences: Sentences = 1
    eval_batch: EvaluationBatch = 64
    eval_limit: int = Field(
        default=4, ge=0, description="validation notes tagged after a round; 0 for the loss alone"
    )


PRESETS: dict[str, dict[str, Any]] = {"recommended": {}, "paper": {"sentences": 1, "local_epochs": 10}}
VARIANTS: dict[str, dict[str, Any]] = {
    "token_classification": {},
    "frozen_words": {"freeze_words": True},
}
"""Named combinations: the paper's text, and its released configuration."""

METHOD = Method(
    name="token_classification",
    task="extraction",
    settings=TaggerSettings,
    presets=PRESETS,
    job_presets={"recommended": INSTRUCT_JOB, "paper": INSTRUCT_JOB},
    pretrained_presets=("recommended", "recommended"),
    variants=VARIANTS,
    facts=MethodFacts(
        summary="Fed-MedLoRA's encoder baseline: entities and modifiers by token "
        "classification, all weights.",
        source="Bio_ClinicalBERT baseline (paper 002); ML-6",
        metrics=("loss", "steps", "words", "seconds"),
        scored=True,
        judged=True,
    ),
    build="medflare.learners.token_classification.learner:build",
    result_file="token_classification.json",
    footprint="medflare.learners.token_classification.footprint:training_step",
    new_model="a new encoder",
)
