# SPDX-License-Identifier: Apache-2.0
"""A frozen decoder without any adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from medflare.models.adapters.base import AdaptedLayer, AdapterSet


class NoAdapters(AdapterSet):
    """No adapter: nothing learns, nothing is communicated, and the decoder computes as it is."""

    def __init__(self, model: Any) -> None:
        self.names, self.settings, self.peft = (), None, model

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        return

    def adapted_layers(self) -> Mapping[Any, AdaptedLayer]:
        return {}

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        return []

    def shared_parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        return {}

    def config_dict(self) -> dict[str, Any]:
        return {}
