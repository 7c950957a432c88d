# SPDX-License-Identifier: Apache-2.0
"""Settings of WCL, R2Gen with a contrast of reports and images."""

from __future__ import annotations

from pydantic import Field

from medflare.core.idle_settings import idle_if
from medflare.core.method import Method, MethodFacts
from medflare.learners.fedmrg.settings import PAPER_JOB, PAPER_RULES
from medflare.learners.generators.settings import GeneratorSettings
from medflare.learners.setting_types import NotNegative, PositiveCount, Rate
from medflare.learners.transformer.settings import presets
from medflare.models.generators.settings import TransformerSettings


class WCLSettings(GeneratorSettings):
    """Everything of WCL that a job can choose."""

    variant: str = "wcl"
    model: TransformerSettings = TransformerSettings(memory="relational", contrast_width=64)
    contrast_share: float = Field(0.2, ge=0, le=1, description="of the contrast; the words' is the rest")
    contrast_temperature: Rate = Field(0.1, description="that similarities are divided by")
    released_temperature: bool = Field(
        False,
        description="BL-6: divide by 1.0 as the released code did, whatever `contrast_temperature` says",
    )
    hard_weight: NotNegative = Field(2.0, description="of a negative from the same cluster of reports")
    clusters: PositiveCount = Field(14, description="of a site's own training reports, by their codes (BL-7)")

    @property
    def without_effect(self) -> dict[str, str]:
        released = idle_if(
            (self.released_temperature, "released_temperature is true", "contrast_temperature")
        )
        return super().without_effect | released

    @property
    def temperature(self) -> float:
        """Temperature that similarities are divided by."""
        return 1.0 if self.released_temperature else self.contrast_temperature


METHOD = Method(
    name="wcl",
    task="reports",
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    settings=WCLSettings,
    presets=presets(memory="relational", contrast_width=256),
    variants={"wcl": {}, "released": {"released_temperature": True}},
    facts=MethodFacts(
        summary="WCL: R2Gen that also tells its report from those of similar images; all weights travel.",
        source="Yan et al., Findings of EMNLP 2021; baseline in paper 000; BL-1 to BL-7",
        metrics=("loss", "loss_words", "loss_contrast", "steps", "seconds"),
        judged=True,
    ),
    build="medflare.learners.wcl.learner:build",
    result_file="wcl.json",
    footprint="medflare.learners.transformer.footprint:training_step",
    new_model="a new image encoder and Transformer",
    weights_in_folder=False,
)
