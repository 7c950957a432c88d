# SPDX-License-Identifier: Apache-2.0
"""What learners ask of adapters of every kind; most kinds need nothing in most of these places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

TensorSpec = dict[str, tuple[tuple[int, ...], torch.dtype]]


class AdapterSet(ABC):
    """The named adapters of one frozen decoder."""

    names: tuple[str, ...]
    settings: Any
    peft: Any
    """The module that holds decoder and adapters, for a trainer."""

    @abstractmethod
    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        """Lets `active` adapters compute (each times its entry of `scales`), and `train` ones learn."""

    @abstractmethod
    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """Everything of one adapter that learns."""

    @abstractmethod
    def state(self, name: str) -> dict[str, Tensor]:
        """A detached fp32 copy of what travels of one adapter."""

    @abstractmethod
    def live(self, name: str) -> dict[str, torch.nn.Parameter]:
        """The parameters themselves under the names of `state`."""

    @abstractmethod
    def load(self, name: str, state: dict[str, Tensor]) -> None:
        """Puts what travelled in place; KeyError if `state` is not exactly this adapter's set of names."""

    @abstractmethod
    def config_dict(self) -> dict[str, Any]:
        """adapter_config.json as JSON types, for a writer that has no model."""

    # ---- with a default ----------------------------------------------------------------------------------

    @property
    def dropout(self) -> float:
        return float(getattr(self.settings, "dropout", 0.0))

    @property
    def positions(self) -> int:
        """Positions of the decoder that the adapter takes."""
        return 0

    def copy(self, source: str, target: str) -> None:
        """Gives one adapter the values of another."""
        self.load(target, self.state(source))

    def exported(self, name: str) -> dict[str, Tensor]:
        """What the file of one adapter holds."""
        return self.state(name)

    def mixture(
        self, names: Sequence[str], weights: Sequence[float]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """One adapter that computes Σ w_i times what the named ones compute, and its configuration."""
        raise NotImplementedError(f"adapters of method '{self.settings.method}' do not mix.")

    def restore(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Takes what the file of an adapter holds."""
        self.load(name, tensors)

    def untravelled(self) -> dict[str, Any]:
        """`seed`, `shapes` and `sha256` of what every site makes for itself; empty where there is nothing."""
        return {}

    def penalty(self) -> Tensor | float:
        """What the method adds to the loss."""
        return 0.0

    def begin_round(self, totals: Mapping[str, Tensor], round_number: int, rounds: int) -> None:
        """Takes the total of all sites' `sums` of the previous round."""
        return

    def after_step(self) -> None:
        """After the optimiser's step, with the gradients still there."""
        return

    def sums_spec(self) -> TensorSpec:
        """What `sums` holds, fixed before round 1."""
        return {}

    def sums(self, weight: float) -> dict[str, Tensor]:
        """What a site adds to all sites' total after a round, scaled by its weight."""
        return {}
