# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2's settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if
from medflare.core.method import Method, MethodFacts, MethodSettings
from medflare.differential_privacy.settings import PrivacySettings
from medflare.learners.setting_types import (
    BatchSize,
    ClipNorm,
    EvaluationBatch,
    LearningRate,
    NotNegative,
    Passes,
    ReportTokens,
    RoundShare,
    WeightDecay,
)
from medflare.models.vit_gpt2 import BeamSettings, ViTGPT2Settings


class WholeModelOptimiserSettings(Settings):
    """AdamW, anew in every round. Defaults are the paper's for pretrained weights (Table 2)."""

    batch: BatchSize = 8
    lr: LearningRate = 5e-5
    weight_decay: WeightDecay = 0.01
    schedule: Literal["constant", "cosine"] = Field(
        default="cosine", description="of a round; the paper names no schedule"
    )
    warmup: RoundShare = 0.0
    clip_norm: ClipNorm = 1.0


class ViTGPT2LearnerSettings(MethodSettings):
    """Everything of FedViT-GPT2 that a job can choose; the rule (VG-1 to VG-11) is the job's."""

    variant: str = "fedvit_gpt2"
    model: ViTGPT2Settings = ViTGPT2Settings()
    optimiser: WholeModelOptimiserSettings = WholeModelOptimiserSettings()
    decoding: BeamSettings = BeamSettings()
    learns: Literal["all", "blocks"] = Field(
        "all",
        description="blocks: attention, feed-forward and norms; tables of words, positions and patches are "
        "frozen, as per-example gradients of them are not to be had",
    )
    dp: PrivacySettings | None = Field(
        default=None,
        description="train with differential privacy for patients; wants learns 'blocks' (variant "
        "`private`), reports no val_loss, and optimiser.clip_norm is not used",
    )
    local_epochs: Passes = 3
    max_report_tokens: ReportTokens = 128
    augment: bool = Field(default=True, description="crop and turn training images; the paper says nothing")
    rotation: NotNegative = Field(5.0, description="degrees; never a flip, laterality is reported")
    eval_batch: EvaluationBatch = 32
    eval_limit: NonNegativeInt | None = Field(
        default=32, description="validation images drafted after a round; null for all"
    )

    @model_validator(mode="after")
    def _private_form(self) -> ViTGPT2LearnerSettings:
        if self.dp is not None and self.learns != "blocks":
            raise ValueError(
                "dp: tables of words and positions are used beside their layers and have no gradients of "
                "single examples: set learns to 'blocks', or take variant 'private'"
            )
        return self

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if(
            (not self.augment, "augment is false", "rotation"),
            (self.dp is not None, "dp bounds the gradients of each patient", "optimiser.clip_norm"),
        )

    @property
    def passes(self) -> int:
        return self.local_epochs

    @property
    def classification(self) -> bool:
        """No diagnosis is named before the report is written."""
        return False


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"augment": False, "optimiser": {"schedule": "constant", "clip_norm": None}},
}
"""Preset -> settings that it changes before a job's own settings apply; `paper` adds nothing that is
not printed."""

PAPER_JOB: dict[str, Any] = {
    "uplink": "float32",
    "downlink": "float32",
}
"""Of the job: updates as they are; the paper names no number of rounds."""

PAPER_RULES: dict[str, dict[str, Any]] = {
    "l_fedavg": {
        "rule_settings.omega": 0.5,
        "rule_settings.loss_weight": "raw",
        "rule_settings.loss_source": "client",
    },
    "weighted_mean": {"rule_settings.weighting": "examples"},
}
"""L-FedAvg as printed (VG-2, VG-4), and FedAvg; Krum's f is not printed (VG-6)."""

VARIANTS: dict[str, dict[str, Any]] = {"fedvit_gpt2": {}, "private": {"learns": "blocks"}}
"""`private` is the form that `dp` can train."""

METHOD = Method(
    name="fedvit_gpt2",
    task="reports",
    settings=ViTGPT2LearnerSettings,
    presets=PRESETS,
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    variants=VARIANTS,
    facts=MethodFacts(
        summary="FedViT-GPT2: radiographs to reports by ViT and GPT-2 with cross-attention, "
        "all weights travel.",
        source="FedViT-GPT2 (paper 003); VG-1 to VG-11",
        metrics=("loss", "steps", "val_loss", "seconds"),
        judged=True,
    ),
    build="medflare.learners.vit_gpt2.learner:build",
    result_file="vit_gpt2.json",
    footprint="medflare.learners.vit_gpt2.footprint:training_step",
    new_model="a new vision transformer and decoder",
)
