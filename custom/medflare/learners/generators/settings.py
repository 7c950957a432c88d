# SPDX-License-Identifier: Apache-2.0
"""Settings that the classical report generators share (BL-1, BL-4, BL-5)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if
from medflare.core.method import MethodSettings
from medflare.learners.setting_types import (
    BatchSize,
    ClipNorm,
    EvaluationBatch,
    LearningRate,
    NotNegative,
    Passes,
    ReportTokens,
    Share,
    WeightDecay,
)
from medflare.models.generators.settings import WordSearchSettings


class GeneratorOptimiserSettings(Settings):
    """Adam over all rounds of a run (BL-1). Defaults are those of FedMRG's comparison.

    Attributes:
        amsgrad: with `weight_decay` inside the gradient, as the `paper` presets of R2Gen's family have it.
    """

    batch: BatchSize = 16
    lr: LearningRate = 5e-5
    encoder_lr_scale: NotNegative = Field(
        default=1.0, description="the image encoder's rate is lr times this; 0 freezes it"
    )
    weight_decay: WeightDecay = 0.05
    amsgrad: bool = False
    schedule: Literal["constant", "cosine"] = Field(
        default="cosine", description="over all rounds of the run"
    )
    warmup: Share = Field(default=0.0, description="share of all steps with a rising rate")
    keep_moments: bool = Field(default=True, description="moments outlive a round, at the site (BL-1)")
    clip_norm: ClipNorm = 1.0


class GeneratorSettings(MethodSettings):
    """Settings of a job that all of these generators have."""

    optimiser: GeneratorOptimiserSettings = GeneratorOptimiserSettings()
    decoding: WordSearchSettings = WordSearchSettings()
    local_epochs: Passes = 1
    max_report_tokens: ReportTokens = 100
    augment: bool = Field(default=True, description="crop and turn training images")
    rotation: NotNegative = Field(default=5.0, description="degrees; never a flip, laterality is reported")
    eval_batch: EvaluationBatch = 32
    eval_limit: NonNegativeInt | None = Field(
        default=32, description="validation images drafted after a round; null for all"
    )

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if((not self.augment, "augment is false", "rotation"))

    @property
    def passes(self) -> int:
        return self.local_epochs

    @property
    def classification(self) -> bool:
        """Whether diagnoses are named before the report is written."""
        return False
