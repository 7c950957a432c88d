# SPDX-License-Identifier: Apache-2.0
"""Puts the adapters of any parameter-efficient method on a frozen decoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from medflare.core.errors import ConfigError
from medflare.models.adapters.adalora import AdaLoraAdapters
from medflare.models.adapters.base import AdapterSet
from medflare.models.adapters.bottleneck import BottleneckAdapters
from medflare.models.adapters.lora import Adapters
from medflare.models.adapters.methods import (
    METHODS,
    AdaLoraSettings,
    AdapterSettings,
    BottleneckSettings,
    PrefixSettings,
    PromptSettings,
    PTuningSettings,
)
from medflare.models.adapters.virtual_tokens import VirtualTokens


def attach(model: Any, settings: AdapterSettings, names: Iterable[str], seed: int) -> Any:
    """The named adapters of `settings.method` on `model`, whose other weights stay as they are.

    The first adapter computes, none learns. Raises ConfigError for layers or a precision that the method
    cannot work on.
    """
    names = tuple(names)
    _check_quantised(model, settings.method)
    if isinstance(settings, PrefixSettings | PromptSettings | PTuningSettings):
        return VirtualTokens(model, settings, names, seed)
    if isinstance(settings, BottleneckSettings):
        return BottleneckAdapters(model, settings, names, seed)
    if isinstance(settings, AdaLoraSettings):
        return AdaLoraAdapters(model, settings, names, seed)
    return Adapters(model, settings, names, seed)


def _check_quantised(model: Any, method: str) -> None:
    if getattr(model, "is_quantized", False) and not METHODS[method].quantised:
        usable = ", ".join(name for name, row in METHODS.items() if row.quantised)
        raise ConfigError(
            f"peft.method '{method}' builds a matrix of a layer's shape, and packed int8 or NF4 layers have "
            f"another. Set backbone.precision to bf16 in site.yaml, or use one of {usable}."
        )


__all__ = ["AdapterSet", "attach"]
