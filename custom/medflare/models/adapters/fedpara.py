# SPDX-License-Identifier: Apache-2.0
"""FedPara (Hyeon-Woo et al. 2022): ΔW = a/ρ (X₁Y₁ᵀ)∘(X₂Y₂ᵀ), PEFT's LoHa; four factors are communicated."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.models.adapters.base import PeftMethod, with_lora_targets
from medflare.models.adapters.layer_adapters import LayerAdapters


class FedParaSettings(Settings):
    """ΔW = a/ρ (X₁Y₁ᵀ)∘(X₂Y₂ᵀ): the Hadamard product of two low-rank matrices (PEFT's LoHa).

    Attributes:
        rank: ρ of each of the two products.
        alpha: a of the scale a/ρ.
        targets: of `lora` where none are named.
    """

    method: Literal["fedpara"] = "fedpara"
    rank: int = Field(24, ge=1)
    alpha: int = Field(24, ge=1)
    targets: tuple[str, ...] = ()


class FedParaAdapters(LayerAdapters):
    """One adapter of Hadamard products."""

    settings: FedParaSettings

    def peft_config(self) -> Any:
        from peft import LoHaConfig

        return LoHaConfig(
            r=self.settings.rank,
            alpha=self.settings.alpha,
            target_modules=list(self.settings.targets),
            task_type="CAUSAL_LM",
        )


METHOD = PeftMethod(
    summary="FedPara: the Hadamard product of two low-rank products (PEFT's LoHa); four factors travel.",
    source="Hyeon-Woo et al. 2022",
    settings=FedParaSettings,
    adapters=FedParaAdapters,
    effective=with_lora_targets,
    quantised=False,
)
