# SPDX-License-Identifier: Apache-2.0
"""Prompt tuning (Lester et al. 2021): embeddings of virtual tokens before the input."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.models.adapters.base import PeftMethod
from medflare.models.adapters.virtual_tokens import VirtualTokens


class PromptSettings(Settings):
    """Embeddings of virtual tokens before the input, first values from the vocabulary (MRG-19)."""

    method: Literal["prompt"] = "prompt"
    tokens: int = Field(200, ge=1, description="virtual ones")


class PromptAdapter(VirtualTokens):
    """Virtual tokens whose embeddings learn."""

    settings: PromptSettings

    def peft_config(self, hidden: int) -> Any:
        from peft import PromptTuningConfig

        return PromptTuningConfig(
            num_virtual_tokens=self.settings.tokens, prompt_tuning_init="SAMPLE_VOCAB", task_type="CAUSAL_LM"
        )


METHOD = PeftMethod(
    summary="Prompt tuning: embeddings of virtual tokens before the input.",
    source="Lester et al. 2021; MRG-19",
    settings=PromptSettings,
    adapters=PromptAdapter,
    starts_as_identity=False,
)
