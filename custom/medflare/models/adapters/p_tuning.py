# SPDX-License-Identifier: Apache-2.0
"""P-tuning (Liu et al. 2021): embeddings of virtual tokens through three linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.models.adapters.base import PeftMethod
from medflare.models.adapters.prompt import PromptSettings
from medflare.models.adapters.virtual_tokens import VirtualTokens


class PTuningSettings(Settings):
    """Embeddings of virtual tokens, reparameterised by three linear layers (MRG-19).

    Attributes:
        tokens: virtual ones.
        width: of the hidden layers; null is the backbone's.
    """

    method: Literal["p_tuning"] = "p_tuning"
    tokens: int = Field(200, ge=1)
    width: int | None = Field(None, ge=1)


class PTuningAdapter(VirtualTokens):
    """Virtual tokens whose embeddings come out of a small network; embeddings and network learn."""

    settings: PTuningSettings

    def peft_config(self, hidden: int) -> Any:
        from peft import PromptEncoderConfig

        return PromptEncoderConfig(
            num_virtual_tokens=self.settings.tokens,
            encoder_hidden_size=self.settings.width or hidden,
            task_type="CAUSAL_LM",
        )


def _settings_of_file(
    settings: PTuningSettings, lora: Any, config: Mapping[str, Any]
) -> tuple[PromptSettings, Any]:
    """Return the settings of plain virtual tokens: PEFT's file holds the network's output only."""
    return PromptSettings(tokens=config["num_virtual_tokens"]), lora


METHOD = PeftMethod(
    summary="P-tuning: embeddings of virtual tokens through three linear layers, which travel with them.",
    source="Liu et al. 2021; MRG-19",
    settings=PTuningSettings,
    adapters=PTuningAdapter,
    settings_of_file=_settings_of_file,
    starts_as_identity=False,
)
