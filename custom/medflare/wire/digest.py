# SPDX-License-Identifier: Apache-2.0
"""Size and digest of named tensors, as the ledger, the checkpoints and the secure sums state them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def byte_count(state: Mapping[str, Tensor]) -> int:
    """Return the number of bytes of the tensors' values, in their present dtypes."""
    return sum(value.numel() * value.element_size() for value in state.values())


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, dtypes, shapes and values, in the order of names, as hex digits."""
    total = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def json_digest(value: Any) -> str:
    """Return the sha256 of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
