# SPDX-License-Identifier: Apache-2.0
"""Prefix tuning (Li & Liang 2021): keys and values of virtual tokens in every layer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.models.adapters.base import PeftMethod
from medflare.models.adapters.virtual_tokens import VirtualTokens, cache_argument


class PrefixSettings(Settings):
    """Keys and values of virtual tokens in every layer."""

    method: Literal["prefix"] = "prefix"
    tokens: int = Field(200, ge=1, description="virtual ones")


class PrefixAdapter(VirtualTokens):
    """Virtual tokens that stand in the cache, so that the embeddings stay as they are."""

    settings: PrefixSettings

    def peft_config(self, hidden: int) -> Any:
        from peft import PrefixTuningConfig

        return PrefixTuningConfig(num_virtual_tokens=self.settings.tokens, task_type="CAUSAL_LM")

    def _insert(self, decoder: Any, kwargs: dict[str, Any], batch: int) -> None:
        """Put the prefix's keys and values, (B, heads, V, head size) in every layer, into the empty cache."""
        name, prefix = cache_argument(kwargs), self.peft.get_prompt(batch)
        cache = kwargs.get(name)
        if cache is None:
            kwargs[name] = prefix
            return
        for number, layer in enumerate(prefix.layers):
            cache.update(layer.keys, layer.values, number)


METHOD = PeftMethod(
    summary="Prefix tuning: keys and values of virtual tokens in every layer.",
    source="Li & Liang 2021",
    settings=PrefixSettings,
    adapters=PrefixAdapter,
    starts_as_identity=False,
    gradient_checkpointing=False,
    per_example=True,
)
