# SPDX-License-Identifier: Apache-2.0
"""PEFT's `adapter_config.json` as a site declares it: what describes an adapter, and nothing that loads code.

Who opens the result of a run gives this file to PEFT, which imports modules and fetches models that it names
(`auto_mapping`, `megatron_core`, `base_model_name_or_path` with `revision`). It comes from a site, so it is
hostile until it has been read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MODEL_NAME = re.compile(r"\w[\w .+=-]{0,95}(?:/\w[\w.-]{0,95})?")
"""A folder's name, or a hub's `owner/name`; never a path."""
BASE_MODEL = "base_model_name_or_path"
PINNED: dict[str, tuple[Any, ...]] = {
    "auto_mapping": (None,),
    "revision": (None,),
    "megatron_config": (None,),
    "megatron_core": (None, "megatron.core"),
    "loftq_config": (None, {}),
    "eva_config": (None,),
    "corda_config": (None,),
    "arrow_config": (None,),
}
"""Key -> the only values it may have: the ones that PEFT writes where the feature is not used."""
MAX_KEYS, MAX_TEXT, MAX_ITEMS = 128, 256, 4096


def check_adapter_config(config: Mapping[str, Any]) -> None:
    """Refuse a configuration that could do more than describe an adapter.

    Raises:
        ValueError: naming the first key that cannot be accepted, without its value.
    """
    if len(config) > MAX_KEYS:
        raise ValueError(f"adapter_config has {len(config)} keys; expected at most {MAX_KEYS}")
    for key, value in config.items():
        if not re.fullmatch(r"[a-z][A-Za-z0-9_]{0,63}", key):
            raise ValueError("adapter_config has a key that is no plain name")
        if key in PINNED and value not in PINNED[key]:
            raise ValueError(f"adapter_config.{key} is set; medflare's adapters do not use it")
        if key == BASE_MODEL and value and not (isinstance(value, str) and MODEL_NAME.fullmatch(value)):
            raise ValueError(f"adapter_config.{key} is no name of a model")
        if not _is_plain(value, depth=2):
            raise ValueError(
                f"adapter_config.{key} is not a number, a short text, or a list or mapping of them"
            )


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a value is made of numbers and short texts only."""
    if value is None or isinstance(value, bool | int):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if depth and isinstance(value, Mapping):
        items = [*value.keys(), *value.values()]
    elif depth and isinstance(value, list | tuple):
        items = list(value)
    else:
        return False
    return len(items) <= MAX_ITEMS and all(_is_plain(item, depth - 1) for item in items)
