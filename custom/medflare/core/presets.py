# SPDX-License-Identifier: Apache-2.0
"""Presets and variants of a method, laid under what a job says (algorithms.md 1.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError

Kind = TypeVar("Kind", bound=Settings)
Blocks = Mapping[str, Mapping[str, Any]]


def resolve_settings(kind: type[Kind], given: Mapping[str, Any], presets: Blocks, variants: Blocks) -> Kind:
    """Preset, then what the job says, then its variant; all errors together.

    Raises ConfigError for an unknown name, or where job and variant contradict each other. The first name of
    `presets` and of `variants` is the default.
    """
    preset, variant = given.get("preset", next(iter(presets))), given.get("variant", next(iter(variants)))
    for name, value, known in (("preset", preset, presets), ("variant", variant, variants)):
        if value not in known:
            raise ConfigError(f"settings.{name} is '{value}'; expected one of {', '.join(known)}.")
    against = sorted(key for key, value in _leaves(variants[variant]) if _at(given, key) not in (None, value))
    if against:
        raise ConfigError(
            f"settings: variant '{variant}' and {', '.join(against)} contradict each other. "
            "Leave these settings out, or the variant."
        )
    merged = _merge(_merge(presets[preset], dict(given)), variants[variant])
    return parse(kind, merged, "settings of the job's client configuration")


def _leaves(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a nested block."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _at(block: Any, dotted: str) -> Any:
    """The value under a dotted name, None where there is none."""
    for key in dotted.split("."):
        block = block.get(key) if isinstance(block, Mapping) else None
    return block


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, going into nested blocks."""
    merged = dict(base)
    for key, value in top.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged
