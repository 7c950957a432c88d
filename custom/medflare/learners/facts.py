# SPDX-License-Identifier: Apache-2.0
"""What a method says of itself: for listings, and for the check that rule and method fit together.

The constant `FACTS` stands beside the method's settings, where its variants stand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from medflare.core.config import Settings
from medflare.learners import builder


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFacts:
    """Facts of one method.

    Attributes:
        summary: what is trained, in one sentence.
        source: paper; section of algorithms.md; resolution ids.
        metrics: numbers that every update holds, by which a rule may weigh it.
        lora: whether it has adapters, of any method in `models.peft_methods`. Of LoRA, pairs of factors
            travel; which of them, the setting `sharing` says if there is one.
        scored: whether a site can score its own update on shared validation data.
        judged: whether an update can be scored by others, at the server or at another site, by what
            `evaluate` gives for a plan that asks for the loss alone.
    """

    summary: str
    source: str
    metrics: tuple[str, ...]
    lora: bool = False
    scored: bool = False
    judged: bool = False


def settings_module(method: str) -> ModuleType:
    """The module that holds a method's settings class, PRESETS, VARIANTS, FACTS and `resolve`."""
    resolve = sys.modules[builder(method).__module__].resolve
    return sys.modules[resolve.__module__]


def method_facts(method: str) -> MethodFacts:
    """Facts of a method; ConfigError that lists the methods where there is none of that name."""
    found: MethodFacts = settings_module(method).FACTS
    return found


def variants(method: str) -> dict[str, dict[str, Any]]:
    """Variant -> the settings it stands for; the first one is the method itself."""
    found: dict[str, dict[str, Any]] = settings_module(method).VARIANTS
    return found


def resolved(method: str, settings: Mapping[str, Any]) -> Settings:
    """A method's settings with preset and variant applied; ConfigError with everything wrong with them."""
    found: Settings = settings_module(method).resolve(settings)
    return found


def sharing(method: str, settings: Settings) -> str:
    """Which LoRA factors travel: `factors`, `freeze_a`, `fedsa`, `stack`; `none` where there are no pairs."""
    pairs = method_facts(method).lora and getattr(settings, "peft_method", "lora") == "lora"
    return str(getattr(settings, "sharing", "factors")) if pairs else "none"
