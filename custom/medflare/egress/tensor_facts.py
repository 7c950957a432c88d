# SPDX-License-Identifier: Apache-2.0
"""Facts of tensors in a line of the ledger: what a run declared, and what a message held of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from medflare.core.tensors import SharedSpec
from medflare.wire.digest import byte_count, state_digest
from medflare.wire.spec_codec import spec_to_json


def declaration_of(shared: SharedSpec, sums: SharedSpec) -> dict[str, Any]:
    """Return what a run's messages may hold: name -> [shape, dtype] of shared tensors and of sums."""
    return {"shared": spec_to_json(shared), "sums": spec_to_json(sums)}


def tensor_facts(
    declared: Mapping[str, Tensor], travelling: Mapping[str, Tensor], allowed: SharedSpec
) -> dict[str, Any]:
    """Return what a line states of a message's tensors.

    Args:
        declared: as the learner returned them, under their declared names.
        travelling: as sent, compressed or sealed.
        allowed: the declaration; what it holds beyond `declared` is listed as missing.
    """
    facts: dict[str, Any] = {
        "tensors": len(declared),
        "dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in travelling.values()}),
        "bytes": byte_count(travelling),
        "sha256": state_digest(travelling),
    }
    missing = sorted(set(allowed) - set(declared))
    if declared and missing:
        facts["missing"] = missing
    return facts
