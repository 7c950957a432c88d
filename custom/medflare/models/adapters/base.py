# SPDX-License-Identifier: Apache-2.0
"""The contract of adapters of every method, and the row of the table by which a method is registered.

Most methods need nothing but `AdapterSet`'s abstract members; the others have defaults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from medflare.core.config import Settings

GENERIC, ANCHOR, SPECIALISED = "generic", "anchor", "specialised"
"""FedMRG's adapters: A_g, its frozen copy A_g^fr that a site received this round, and L_s. The paper's A_s is
anchor + specialised. Methods with one adapter call it `generic`."""

TensorSpec = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, slots=True, eq=False)
class LowRankPair:
    """The term that LoRA adds to a frozen layer: scale · (x Aᵀ) Bᵀ, A (ρ, in) and B (out, ρ)."""

    a: torch.nn.Parameter
    b: torch.nn.Parameter
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedLayer:
    """A layer with adapters: its matrix `base`, and the terms of adapters in use that are not in it."""

    base: Any
    pairs: tuple[LowRankPair, ...]


class AdapterSettings(Protocol):
    """Settings of any method."""

    @property
    def method(self) -> str:
        """A name in `registry.PEFT_METHODS`."""
        ...


class AdapterSet(ABC):
    """The named adapters of one frozen decoder.

    Attributes:
        peft: the module that holds decoder and adapters, for a trainer.
    """

    names: tuple[str, ...]
    settings: Any
    peft: Any

    @abstractmethod
    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        """Let the `active` adapters compute, each times its entry of `scales`, and the `train` ones learn."""

    @abstractmethod
    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """Return everything of one adapter that learns."""

    @abstractmethod
    def shared_parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Return the communicated parameters themselves, under the names of `state`."""

    @abstractmethod
    def config_dict(self) -> dict[str, Any]:
        """Return adapter_config.json as JSON types, for a writer that has no model."""

    # ---- with a default ----------------------------------------------------------------------------------

    def state(self, name: str) -> dict[str, Tensor]:
        """Return a detached fp32 copy, on the CPU, of what is communicated of one adapter."""
        return copies(self.shared_parameters(name))

    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Put communicated values in place.

        Raises:
            KeyError: `state` is not exactly this adapter's set of names.
        """
        assign(name, self.shared_parameters(name), state)

    @property
    def dropout(self) -> float:
        """Share of an adapter's inputs that training drops; 0 for a method without dropout."""
        return 0.0

    @property
    def positions(self) -> int:
        """Positions of the decoder that the adapter takes."""
        return 0

    def merged(self) -> AbstractContextManager[None]:
        """Add what the adapters in use compute to the decoder's weights for as long as a block runs.

        Outside, the frozen weights are bit for bit what they were. A method that cannot does nothing.
        """
        return nullcontext()

    def adapted_layers(self) -> Mapping[Any, AdaptedLayer] | None:
        """Return each adapted layer's terms where these are all that the adapters in use compute.

        None where they compute anything else, or the frozen layers are not plain matrices.
        """
        return None

    def copy(self, source: str, target: str) -> None:
        """Give one adapter the values of another."""
        self.load(target, self.state(source))

    def file_tensors(self, name: str) -> dict[str, Tensor]:
        """Return what the file of one adapter holds."""
        return self.state(name)

    def load_file_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Put in place what the file of an adapter holds; KeyError as `load`."""
        self.load(name, tensors)

    def mixture(
        self, names: Sequence[str], weights: Sequence[float]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return one adapter that computes Σ w_i times what the named ones compute, and its configuration."""
        raise NotImplementedError(f"adapters of method '{self.settings.method}' do not mix.")

    def add_frozen(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Add or replace an adapter that does not learn."""
        raise NotImplementedError(f"method '{self.settings.method}' takes no frozen adapter.")

    def set_seeded_a(self, name: str, seed: int) -> None:
        """Give one adapter the A factors that every site and the server can make from the seed alone."""
        raise NotImplementedError(f"method '{self.settings.method}' has no factors A.")

    def not_communicated(self) -> dict[str, Any]:
        """Return `seed`, `shapes` and `sha256` of what every site makes for itself; empty if nothing."""
        return {}

    def penalty(self) -> Tensor | float:
        """Return what the method adds to the loss."""
        return 0.0

    def begin_round(self, totals: Mapping[str, Tensor], round_number: int, rounds: int) -> None:
        """Take the totals of all sites' auxiliary sums of the previous round."""
        return

    def after_step(self) -> None:
        """Act after the optimiser's step, while the gradients are still there."""
        return

    def auxiliary_sums_spec(self) -> TensorSpec:
        """Return names, shapes and dtypes of `auxiliary_sums`, fixed before round 1."""
        return {}

    def auxiliary_sums(self, weight: float) -> dict[str, Tensor]:
        """Return what a site adds to all sites' totals after a round, scaled by its weight."""
        return {}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return detached fp32 copies on the CPU."""
    return {name: value.detach().to("cpu", torch.float32).clone() for name, value in tensors.items()}


def assign(adapter: str, targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy `values` into the tensors of the same names, or change nothing and raise KeyError."""
    if odd := sorted(set(targets) ^ set(values)):
        raise KeyError(f"adapter '{adapter}': {len(odd)} names differ, for instance '{odd[0]}'.")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(values[name])


def settings_unchanged(settings: Any, lora: Any, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the settings as they are: no rule or merge changes the sizes of most methods."""
    return settings, lora


def without_lora(settings: Any, lora: Any) -> Any:
    """Return the settings as they are: most methods use nothing of the block `lora`."""
    return settings


def with_lora_targets(settings: Any, lora: Any) -> Any:
    """Return the settings with the targets of the block `lora`, unless they name their own."""
    return settings if settings.targets else settings.model_copy(update={"targets": lora.targets})


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftMethod:
    """One row of `registry.PEFT_METHODS`.

    Attributes:
        summary: what learns and is communicated; source: paper, section, resolution ids.
        settings: class of the job's block `peft`.
        adapters: class whose constructor takes (model, settings, names, seed).
        effective: (settings, block `lora`) -> the settings that count.
        settings_of_file: (settings, block `lora`, adapter_config.json) -> both with the sizes of the file,
            which a rule or a merge may have changed.
        peft_opens: whether plain PEFT opens the result.
        starts_as_identity: whether a new adapter changes nothing.
        several_active: whether two adapters can compute at once, as FedMRG's and FedDAT's do.
        quantised: whether it works on int8 and NF4 layers.
        gradient_checkpointing: whether it works with gradient checkpointing.
        per_example: whether the gradients of single examples can be had, which differential privacy needs:
            everything that learns must be the weights of a layer that is called once for each batch.
    """

    summary: str
    source: str
    settings: type[Settings]
    adapters: Callable[[Any, Any, Iterable[str], int], AdapterSet]
    effective: Callable[[Any, Any], Any] = without_lora
    settings_of_file: Callable[[Any, Any, Mapping[str, Any]], tuple[Any, Any]] = settings_unchanged
    peft_opens: bool = True
    starts_as_identity: bool = True
    several_active: bool = False
    quantised: bool = True
    gradient_checkpointing: bool = True
    per_example: bool = False
