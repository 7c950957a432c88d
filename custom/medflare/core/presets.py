# SPDX-License-Identifier: Apache-2.0
"""Presets and variants of a method, merged with what a job sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound=Settings)
Blocks = Mapping[str, Mapping[str, Any]]
"""Name of a preset or variant -> nested settings."""


def resolve_settings(
    settings_class: type[SettingsT], given: Mapping[str, Any], presets: Blocks, variants: Blocks
) -> SettingsT:
    """Return validated settings: the preset, over it what the job sets, over that the job's variant.

    Args:
        settings_class: validates the merged settings.
        given: the job's `settings` block.
        presets, variants: by name; the first of each is the default.

    Raises:
        ConfigError: an unknown preset or variant, a variant that contradicts what the job sets, or settings
            that are not valid; all invalid settings are listed together.
    """
    preset, variant = given.get("preset", next(iter(presets))), given.get("variant", next(iter(variants)))
    for name, value, known in (("preset", preset, presets), ("variant", variant, variants)):
        if not isinstance(value, str) or value not in known:
            raise ConfigError(f"settings.{name} is '{value}'; expected one of {', '.join(known)}.")
    conflicts = sorted(
        key for key, value in _leaves(variants[variant]) if lookup(given, key) not in (None, value)
    )
    if conflicts:
        raise ConfigError(
            f"settings: variant '{variant}' and {', '.join(conflicts)} contradict each other. "
            "Leave these settings out, or the variant."
        )
    merged = merge_settings(merge_settings(presets[preset], dict(given)), variants[variant])
    return parse(settings_class, merged, "settings of the job's client configuration")


def _leaves(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of a nested block."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def lookup(block: Any, dotted: str) -> Any:
    """Return the value under a dotted name, None where there is none."""
    for key in dotted.split("."):
        block = block.get(key) if isinstance(block, Mapping) else None
    return block


def merge_settings(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overridden by `top`, going into nested blocks."""
    merged = dict(base)
    for key, value in top.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_settings(merged[key], value) if nested else value
    return merged
