# SPDX-License-Identifier: Apache-2.0
"""The vectors in which an update is encrypted, each with bounds of its own that all sites are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from medflare.secure_aggregation.encryption_schemes import HeParameters
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.round_parameters import WIDE_BOUND

ENCRYPTED = "encrypted"
"""Key of what a request says about ciphertexts, and prefix of their names on the wire."""
MEANS, COUNTERS, SUMS = PARTS = ("means", "counters", "sums")
"""Floating tensors and counters, of which the state is made; sums, of which the last round's count."""
STEP = 2.0**-20
"""To what counters and sums are rounded: they may be large, and take several numbers a value."""


def on_wire(part: str, group: int | None = None) -> str:
    """Return the name of a part's ciphertexts on the wire; of one group of rounds on the way down."""
    return f"{ENCRYPTED}:{part}" if group is None else f"{ENCRYPTED}:{part}:{group}"


def sizes(layout: Layout) -> dict[str, int]:
    """Return part -> number of values, of the parts an update of this layout has."""
    every = {MEANS: layout.narrow.size, COUNTERS: layout.weighted, SUMS: layout.sums}
    return {part: size for part, size in every.items() if size}


def split_parts(layout: Layout, tensors: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return part -> fp64 vector of an update that weighs `share`; its sums as they are."""
    narrow, wide = layout.pack(tensors)
    every = {
        MEANS: narrow.double() * share,
        COUNTERS: wide[: layout.weighted] * share,
        SUMS: wide[layout.weighted :],
    }
    return {part: every[part] for part in sizes(layout)}


def join_parts(layout: Layout, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of fp64 parts; zeros where a part is missing."""
    padded = {
        part: parts.get(part, torch.zeros(size, dtype=torch.float64))
        for part, size in zip(PARTS, (layout.narrow.size, layout.weighted, layout.sums), strict=True)
    }
    return layout.unpack(padded[MEANS], torch.cat([padded[COUNTERS], padded[SUMS]]))


def name_at(layout: Layout, part: str, position: int) -> str:
    """Return the name of the tensor that a value of a part belongs to."""
    if part == MEANS:
        return layout.narrow.name_at(position)
    return layout.wide.name_at(position + (layout.weighted if part == SUMS else 0))


def terms_of(layout: Layout, bound: float, sites: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Return part -> arguments of `Terms`, which all sites are sent.

    The parts of the state are added over all rounds, so they need room for more additions than sums.
    """
    wide = {"bound": WIDE_BOUND, "step": STEP}
    every = {
        MEANS: {"bound": bound, "additions": sites * rounds},
        COUNTERS: {**wide, "additions": sites * rounds},
        SUMS: {**wide, "additions": sites},
    }
    return {part: every[part] for part in sizes(layout)}


def read_terms(data: Mapping[str, Mapping[str, Any]]) -> dict[str, HeParameters]:
    """Return what `terms_of` described."""
    return {part: HeParameters(**arguments) for part, arguments in data.items()}
