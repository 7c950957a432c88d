# SPDX-License-Identifier: Apache-2.0
"""Prefixes that tell the kinds of tensors in one message apart, and how they are put on and taken off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a site's policy knows these names, and runs in a process without torch
    from torch import Tensor

    from medflare.core.tensors import State

SUM_PREFIX = "sum:"
"""Of auxiliary sums, on the way from a site to the server."""
TOTAL_PREFIX = "total:"
"""Of the totals of these sums over all sites, on the way back."""


FeatureKind = Literal["none", "prototypes", "raw"]
FEATURES: tuple[FeatureKind, ...] = ("none", "prototypes", "raw")
"""Kinds of image features in auxiliary sums, from none to those of single images."""
PROTOTYPES, RAW = "features.prototypes.", "features.raw."
"""Of sums that hold features: a site's policy knows them by their name, whatever the method. Prototypes are
`<prefix><name>.sum` (cells, width) with `<prefix><name>.count` (cells,), the images in each cell's sum."""


def feature_kind(name: str) -> FeatureKind:
    """Return what a sum of this name, with or without the prefix of sums, holds of features.

    A sum that begins with `features.` and is no prototype counts as raw.
    """
    plain = name.removeprefix(SUM_PREFIX)
    if plain.startswith(PROTOTYPES):
        return "prototypes"
    return "raw" if plain.startswith("features.") else "none"


def with_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the same tensors under `prefix + name`."""
    return {prefix + name: value for name, value in state.items()}


def split_by_prefix(state: Mapping[str, Tensor], prefix: str) -> tuple[State, State]:
    """Split a message's tensors by the prefix of their names.

    Returns:
        (tensors whose names do not start with `prefix`, the others with the prefix taken off).
    """
    without = {name: value for name, value in state.items() if not name.startswith(prefix)}
    inner = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    return without, inner
