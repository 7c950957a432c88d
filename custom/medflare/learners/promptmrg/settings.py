# SPDX-License-Identifier: Apache-2.0
"""Settings of PromptMRG."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from medflare.core.method import Method, MethodFacts
from medflare.learners.fedmrg.settings import PAPER_JOB, PAPER_RULES
from medflare.learners.generators.settings import GeneratorSettings
from medflare.learners.setting_types import NotNegative, PositiveCount
from medflare.models.generators.promptmrg import PromptMRGModelSettings
from medflare.models.generators.settings import LanguageModelSearchSettings


class PromptMRGSettings(GeneratorSettings):
    """Everything of PromptMRG that a job can choose."""

    variant: str = "promptmrg"
    model: PromptMRGModelSettings = PromptMRGModelSettings()
    decoding: LanguageModelSearchSettings = LanguageModelSearchSettings()
    lambda_cls: NotNegative = Field(default=4.0, description="weight of the diagnoses' loss")
    retrieved: PositiveCount = Field(
        default=21, description="reports of the site's own that an image is given"
    )
    logit_adjustment: Literal["adaptive", "frequency", "none"] = Field(
        default="adaptive", description="BL-11: what is added to positive logits while training"
    )

    @property
    def classification(self) -> bool:
        """Diagnoses prompt the report."""
        return True

    @property
    def peft_method(self) -> str:
        """The adapter's method, a name in `models.adapters.registry.PEFT_METHODS`."""
        return self.model.peft.method

    @model_validator(mode="after")
    def _prompts(self) -> PromptMRGSettings:
        if not self.model.prompts:
            raise ValueError("model.prompts is false, but diagnoses that prompt are what PromptMRG is")
        if self.peft_method == "adalora":
            raise ValueError("model.peft.method 'adalora' sends sums of its own; choose another one here")
        return self


PAPER: dict[str, Any] = {
    "model": {
        "encoder": {"name": "resnet101", "weights": "site", "image_size": 224},
        "retrieval_width": 512,
        "retrieval_heads": 8,
    },
    "optimiser": {"lr": 5e-5, "weight_decay": 0.05, "clip_norm": None},
}

METHOD = Method(
    name="promptmrg",
    task="reports",
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    settings=PromptMRGSettings,
    presets={"recommended": {}, "paper": PAPER},
    variants={"promptmrg": {}, "without_adjustment": {"logit_adjustment": "none"}},
    facts=MethodFacts(
        summary="PromptMRG: diagnoses, helped by a site's own retrieved reports, prompt a language model.",
        source="Jin et al., AAAI 2024; baseline in paper 000; BL-1, BL-10 to BL-12",
        metrics=("loss", "loss_words", "loss_cls", "steps", "seconds"),
        lora=True,
        judged=True,
    ),
    build="medflare.learners.promptmrg.learner:build",
    footprint="medflare.learners.promptmrg.footprint:training_step",
    result_file="promptmrg.json",
)
