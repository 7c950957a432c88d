# SPDX-License-Identifier: Apache-2.0
"""Settings of CT2RepLong, which reads a volume, the volume before it and its report."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from medflare.core.idle_settings import idle_if
from medflare.core.method import Method, MethodFacts
from medflare.learners.generators.settings import GeneratorSettings
from medflare.learners.setting_types import PositiveCount
from medflare.learners.transformer.settings import PAPER_OPTIMISER
from medflare.models.generators.settings import CT2RepLongModelSettings


class CT2RepLongSettings(GeneratorSettings):
    """Everything of CT2RepLong that a job can choose."""

    variant: str = "ct2replong"
    visits: PositiveCount = Field(5, description="T; later visits of a site are not used")
    model: CT2RepLongModelSettings = CT2RepLongModelSettings()
    max_former_tokens: PositiveCount = Field(100, description="of the report before")
    former: bool = Field(True, description="volume and report of the visit before are read")
    augment: bool = Field(default=False, description="volumes are not augmented, as in the paper")

    @property
    def without_effect(self) -> dict[str, str]:
        return super().without_effect | idle_if((not self.former, "former is false", "max_former_tokens"))


PAPER: dict[str, Any] = {
    "model": {
        "encoder": {
            **{"image_size": 480, "slices": 240, "patch": 24, "slice_patch": 12},
            **{"width": 512, "attention_heads": 8, "layers": 4},
        },
        "width": 512,
        "attention_heads": 8,
        "layers": 3,
        "feed_forward": 512,
        "positions": 201,
    },
    "optimiser": PAPER_OPTIMISER,
    "max_report_tokens": 200,
    "max_former_tokens": 200,
    "decoding": {"beams": 1, "max_new_tokens": 200},
}
"""480 x 480 x 240 voxels in blocks of 24 x 24 x 12; R2Gen's decoder and training, greedy reports."""

METHOD = Method(
    name="ct2replong",
    task="visits",
    settings=CT2RepLongSettings,
    presets={"recommended": {}, "paper": PAPER},
    variants={"ct2replong": {}, "without_former": {"former": False}},
    facts=MethodFacts(
        summary="CT2RepLong: a volume, the one before and its report to a report; all weights travel.",
        source="Hamamci et al., MICCAI 2024; comparison in paper 001; BL-1, BL-4, BL-17 to BL-19",
        metrics=("loss", "steps", "seconds"),
        judged=True,
    ),
    build="medflare.learners.ct2replong.learner:build",
    footprint="medflare.learners.ct2replong.footprint:training_step",
    result_file="ct2replong.json",
    new_model="a new volume encoder and Transformer",
    weights_in_folder=False,
)
