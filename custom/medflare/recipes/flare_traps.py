# SPDX-License-Identifier: Apache-2.0
"""Checks of a job's JSON for what FLARE, or a site, would do with it that its author did not mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from medflare.protocol.nested_settings import MARK, RESERVED
from medflare.recipes.allow_list import allowed_classes
from medflare.recipes.moved_classes import moved_class


def flare_traps(content: Any, inside_args: bool = False) -> list[str]:
    """Return keys from which FLARE would build a component, and classes that a site would refuse.

    Args:
        content: JSON of a job's configuration.
        inside_args: whether `content` lies within the arguments of a component.
    """
    problems: list[str] = []
    if isinstance(content, Mapping):
        path = content.get("path")
        if not inside_args and isinstance(path, str) and path not in allowed_classes():
            problems.append(moved_class(path) or f"class {path} is not in the allow-list")
        if inside_args and content.get(MARK[0]) != MARK[1]:
            problems += [
                f"FLARE takes the key '{key}' for a component; rename it"
                for key in RESERVED
                if key in content
            ]
        for key, value in content.items():
            problems += flare_traps(value, inside_args or key == "args")
    elif isinstance(content, list):
        for item in content:
            problems += flare_traps(item, inside_args)
    return problems


def class_paths(content: Any) -> Iterator[str]:
    """Yield every text under a key `path`: a component's class, or what looks like one."""
    if isinstance(content, Mapping):
        if isinstance(content.get("path"), str):
            yield content["path"]
        for value in content.values():
            yield from class_paths(value)
    elif isinstance(content, list):
        for item in content:
            yield from class_paths(item)
