# SPDX-License-Identifier: Apache-2.0
"""Activations computed a second time instead of stored (gradient checkpointing), under the names of all
transformers versions that setup.cfg allows."""

from __future__ import annotations

from typing import Any

from torch import nn


def recompute_activations(model: Any) -> None:
    """Switch on gradient checkpointing of a transformers model."""
    # Named gradient_checkpointing_enable before transformers 5.24, where that name warns.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def recomputes_activations(model: nn.Module) -> bool:
    """Return whether a part of a transformers model computes its activations a second time."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
