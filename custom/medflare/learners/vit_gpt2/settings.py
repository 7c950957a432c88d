# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2's settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.core.method import Method, MethodFacts, MethodSettings
from medflare.models.vit_gpt2 import BeamSettings, ViTGPT2Settings


class OptimiserSettings(Settings):
    """AdamW, anew in every round. Defaults are the paper's for pretrained weights (Table 2)."""

    batch: int = Field(default=8, ge=1)
    lr: float = Field(default=5e-5, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Literal["constant", "cosine"] = Field(
        default="cosine", description="of a round; the paper names no schedule"
    )
    warmup: float = Field(default=0.0, ge=0, lt=1, description="share of a round's steps with a rising rate")
    clip_norm: float | None = Field(default=1.0, gt=0, description="largest gradient norm; null for any")


class ViTGPT2LearnerSettings(MethodSettings):
    """Everything of FedViT-GPT2 that a job can choose; the rule (VG-1 to VG-11) is the job's."""

    variant: str = "fedvit_gpt2"
    model: ViTGPT2Settings = ViTGPT2Settings()
    optimiser: OptimiserSettings = OptimiserSettings()
    decoding: BeamSettings = BeamSettings()
    local_epochs: int = Field(
        default=3, ge=1, description="passes in a round, unless the job says steps or fraction"
    )
    max_report_tokens: int = Field(default=128, ge=1)
    augment: bool = Field(default=True, description="crop and turn training images; the paper says nothing")
    rotation: float = Field(default=5.0, ge=0, description="degrees; never a flip, laterality is reported")
    eval_batch: int = Field(default=32, ge=1)
    eval_limit: int | None = Field(
        default=32, description="validation images drafted after a round; null for all"
    )

    @property
    def classification(self) -> bool:
        """No diagnosis is named before the report is written."""
        return False


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"augment": False, "optimiser": {"schedule": "constant", "clip_norm": None}},
}
"""What `preset` changes before a job's own settings apply: `paper` adds nothing that is
not printed."""

VARIANTS: dict[str, dict[str, Any]] = {"fedvit_gpt2": {}}

METHOD = Method(
    name="fedvit_gpt2",
    task="reports",
    settings=ViTGPT2LearnerSettings,
    presets=PRESETS,
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
)
