# SPDX-License-Identifier: Apache-2.0
"""A specification of shared tensors (name -> shape, dtype) in JSON types, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from medflare.core.tensors import SharedSpec


def spec_to_json(spec: SharedSpec) -> dict[str, list[Any]]:
    """Return `{name: [shape, dtype]}` in JSON types, the dtype without `torch.`."""
    return {name: [list(shape), str(dtype).removeprefix("torch.")] for name, (shape, dtype) in spec.items()}


def spec_from_json(data: Mapping[str, Any]) -> SharedSpec:
    """Return the specification that `spec_to_json` was given."""
    return {name: (tuple(shape), getattr(torch, dtype)) for name, (shape, dtype) in data.items()}
