# SPDX-License-Identifier: Apache-2.0
"""The parameter-efficient methods of adapter jobs: the one table in which a method is registered.

A new method is a file with its settings, its adapters and its `METHOD`, and one line in `PEFT_METHODS`. Every
method but `bottleneck` is PEFT's own implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from medflare.core.errors import ConfigError
from medflare.core.idle_settings import idle_if
from medflare.models.adapters import (
    adalora,
    bottleneck,
    fedpara,
    lora,
    p_tuning,
    prefix,
    prompt,
    vera,
)
from medflare.models.adapters.base import AdapterSet, AdapterSettings, PeftMethod
from medflare.models.adapters.lora import LoraSettings

PEFT_METHODS: dict[str, PeftMethod] = {
    "lora": lora.METHOD,
    "adalora": adalora.METHOD,
    "fedpara": fedpara.METHOD,
    "vera": vera.METHOD,
    "prefix": prefix.METHOD,
    "prompt": prompt.METHOD,
    "p_tuning": p_tuning.METHOD,
    "bottleneck": bottleneck.METHOD,
}
"""Name in `peft.method` -> the method."""

SIZES = ("r", "width", "num_virtual_tokens")
"""Numbers in adapter_config.json that a rule or a merge may have changed, and that memory is taken for."""
MOST_SIZE = 4096

if TYPE_CHECKING:
    PeftChoice = AdapterSettings
else:
    PeftChoice = Annotated[
        Union[tuple(method.settings for method in PEFT_METHODS.values())],  # noqa: UP007 - built from the table
        Field(discriminator="method"),
    ]
"""The job's block `peft`: settings of the method that `peft.method` names."""


def effective_settings(peft: AdapterSettings, lora: LoraSettings) -> AdapterSettings:
    """Return the settings that count: the block `peft`, or the block `lora` where `peft` says so.

    Targets that `peft` leaves out are those of `lora`.
    """
    settings: AdapterSettings = PEFT_METHODS[peft.method].effective(peft, lora)
    return settings


def unused_lora(peft: AdapterSettings) -> dict[str, str]:
    """Return the settings of the block `lora` that another method does not use -> why."""
    why = f"peft.method is '{peft.method}'"
    return idle_if((peft.method != "lora", why, "lora.rank lora.lora_alpha lora.dropout"))


def settings_of_file(
    peft: AdapterSettings, lora: LoraSettings, config: Mapping[str, Any]
) -> tuple[AdapterSettings, LoraSettings]:
    """Return the blocks `peft` and `lora` that fit an adapter's file, whose sizes a rule or merge may change.

    Args:
        config: adapter_config.json of the file.

    Raises:
        ConfigError: a size is missing, or none that memory could be taken for.
    """
    sizes = {name: config[name] for name in SIZES if config.get(name) is not None}
    for name, size in sizes.items():
        if type(size) is not int or not 1 <= size <= MOST_SIZE:
            raise ConfigError(f"adapter_config.json: '{name}' is {size!r:.80}; expected 1 to {MOST_SIZE}.")
    try:
        return PEFT_METHODS[peft.method].settings_of_file(peft, lora, config)
    except KeyError as error:
        raise ConfigError(f"adapter_config.json: lacks {error}.") from None


def attach(model: Any, settings: AdapterSettings, names: Iterable[str], seed: int) -> AdapterSet:
    """Put the named adapters of `settings.method` on `model`, whose other weights stay as they are.

    The first adapter computes, none learns.

    Raises:
        ConfigError: the model has no such layers, or a precision that the method cannot work on.
    """
    method = PEFT_METHODS[settings.method]
    if getattr(model, "is_quantized", False) and not method.quantised:
        usable = ", ".join(name for name, row in PEFT_METHODS.items() if row.quantised)
        raise ConfigError(
            f"peft.method '{settings.method}' builds a matrix of a layer's shape, and packed int8 or NF4 "
            "layers have another. Set backbone.precision to bf16 in site.yaml, or use one of "
            f"{usable}."
        )
    return method.adapters(model, settings, tuple(names), seed)
