# SPDX-License-Identifier: Apache-2.0
"""Settings that do nothing beside the others, which somebody who asks for them should be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from medflare.core.config import Settings, settings_classes


def idle_if(*groups: tuple[bool, str, str]) -> dict[str, str]:
    """Return name -> why for the groups that hold: (whether it does, why, names parted by spaces)."""
    return {name: why for holds, why, names in groups if holds for name in names.split()}


def without_effect(settings: Settings, prefix: str = "") -> dict[str, str]:
    """Return the dotted names of all settings that do nothing beside the others -> why.

    Args:
        prefix: before each name, in the reasons, too.
    """
    fields = type(settings).model_fields
    found = {}
    for name, why in settings.without_effect.items():
        names_setting = why.replace(".", " ").split()[0] in fields
        found[prefix + name] = prefix + why if names_setting else why
    for name, field in fields.items():
        block = getattr(settings, name)
        if type(block) in settings_classes(field.annotation) and prefix + name not in found:
            found |= without_effect(block, f"{prefix}{name}.")
    return found


def idle(asked: Iterable[str], reasons: Mapping[str, str]) -> list[str]:
    """Return a sentence for each setting asked for that does nothing, or lies in a block that does.

    Args:
        reasons: dotted name -> why, as `without_effect` returns them.
    """
    keys = sorted(asked)
    return [
        f"{key} has no effect, as {why}"
        for name, why in reasons.items()
        for key in keys
        if key == name or key.startswith(f"{name}.")
    ]
