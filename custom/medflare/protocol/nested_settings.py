# SPDX-License-Identifier: Apache-2.0
"""Nested settings in FLARE's job configuration.

FLARE takes a nested mapping with a key `path`, `name` or `class_path` for a component it must build, unless
that very mapping says `"config_type": "dict"`. Job folders carry the mark, the executor takes it off again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RESERVED = ("path", "name", "class_path")
MARK = ("config_type", "dict")


def marked(node: Any) -> Any:
    """Return `node` with the mark in every mapping that FLARE would misunderstand."""
    if isinstance(node, Mapping):
        inner = {key: marked(value) for key, value in node.items() if key != MARK[0]}
        return {MARK[0]: MARK[1], **inner} if any(key in node for key in RESERVED) else inner
    return [marked(item) for item in node] if isinstance(node, list) else node


def unmarked(node: Any) -> Any:
    """Return `node` without marks."""
    if isinstance(node, Mapping):
        return {key: unmarked(value) for key, value in node.items() if key != MARK[0]}
    return [unmarked(item) for item in node] if isinstance(node, list) else node
