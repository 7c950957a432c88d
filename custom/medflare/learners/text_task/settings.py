# SPDX-License-Identifier: Apache-2.0
"""Settings that every text task has: adapter, training, and which factors are communicated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from medflare.core.config import Settings
from medflare.core.method import MethodSettings
from medflare.models.adapters.base import AdapterSettings
from medflare.models.adapters.lora import LoraChoice, LoraSettings
from medflare.models.adapters.registry import METHODS, PeftChoice, effective_settings

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Sharing = Literal["factors", "freeze_a", "fedsa", "stack"]


class OptimiserSettings(Settings):
    """Defaults are those of Fed-MedLoRA's paper."""

    batch: int = Field(default=4, ge=1)
    accumulate: int = Field(default=1, ge=1, description="batches of one optimiser step")
    lr: float = Field(default=2e-4, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1, description="share of a round's steps with a rising rate")
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    gradient_checkpointing: bool = False


class TextTaskSettings(MethodSettings):
    """A frozen language model with an adapter that answers prompts; defaults are Fed-MedLoRA's."""

    lora: LoraSettings = LoraSettings(rank=16, lora_alpha=64, targets=ALL_PROJECTIONS, dropout=0.05)
    peft: PeftChoice = Field(
        LoraChoice(), description="the method; `lora` holds the numbers of LoRA, and the targets of all"
    )
    optimiser: OptimiserSettings = OptimiserSettings()
    sharing: Sharing = Field(
        "factors",
        description="what is sent. factors: A and B. freeze_a: B, A is made from the seed. fedsa: A, "
        "B stays. stack: A and B, the server sends back what it stacked (rule lora_stack)",
    )
    local_epochs: int = Field(
        default=2, ge=1, description="passes in a round, unless the job says steps or fraction"
    )
    max_tokens: int = Field(default=800, ge=64, description="of a question and its answer")
    eval_batch: int = Field(default=32, ge=1)

    @property
    def adapter(self) -> AdapterSettings:
        """The settings of the adapter: `peft`, or `lora` where that is the method."""
        return effective_settings(self.peft, self.lora)

    @property
    def peft_method(self) -> str:
        """The adapter's method, a name in `models.adapters.registry.METHODS`."""
        return self.peft.method

    @property
    def lora_sharing(self) -> str:
        """`sharing`, where the adapter is LoRA."""
        return self.sharing if self.peft_method == "lora" else "none"

    @property
    def sends_sums(self) -> dict[str, str]:
        """Settings by which updates carry declared sums -> what would send none."""
        adalora = self.peft_method == "adalora"
        return {"settings.peft.method 'adalora'": "another method"} if adalora else {}

    @model_validator(mode="after")
    def _fits_together(self) -> TextTaskSettings:
        method = self.peft_method
        if self.sharing != "factors" and method != "lora":
            raise ValueError(
                f"sharing '{self.sharing}' is about LoRA's factors, and peft.method '{method}' has none: "
                "leave sharing out, or use method 'lora'"
            )
        if self.optimiser.gradient_checkpointing and not METHODS[method].gradient_checkpointing:
            raise ValueError(
                f"peft.method '{method}' puts keys and values into every layer, which gradient checkpointing "
                "drops without a word: set optimiser.gradient_checkpointing to false"
            )
        return self
