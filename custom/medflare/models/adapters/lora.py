# SPDX-License-Identifier: Apache-2.0
"""LoRA (Hu et al. 2022): ΔW = a/ρ · B A beside linear layers, A (ρ, d_in) and B (d_out, ρ)."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import AdaptedLayer, LowRankPair, PeftMethod
from medflare.models.adapters.layer_adapters import LayerAdapters

MOST_ALPHA = 1e6
"""Numerators of the scale a/ρ in a file are below it; another one is damage."""
ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a block of the Llama family."""


class LoraSettings(Settings):
    """The block `lora`: rank ρ, numerator a of the scale a/ρ, and the projections that carry a pair.

    Defaults are the ones recovered from the traffic that FedMRG's paper reports (59.28 M parameters).

    Attributes:
        rank: ρ.
        lora_alpha: a of the scale a/ρ.
        targets: last parts of the names of the layers that carry a pair.
        dropout: of a pair's input.
    """

    method: ClassVar[str] = "lora"
    rank: PositiveInt = 16
    lora_alpha: PositiveInt = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dropout: float = Field(default=0.0, ge=0, lt=1)


class LoraChoice(Settings):
    """LoRA, with the numbers of the block `lora`."""

    method: Literal["lora"] = "lora"


class LoraAdapters(LayerAdapters):
    """Any number of LoRA adapters on one decoder."""

    settings: LoraSettings
    several_active = True

    @property
    def dropout(self) -> float:
        return self.settings.dropout

    def peft_config(self) -> Any:
        from peft import LoraConfig

        return LoraConfig(
            r=self.settings.rank,
            lora_alpha=self.settings.lora_alpha,
            target_modules=list(self.settings.targets),
            lora_dropout=self.settings.dropout,
            bias="none",
            task_type="CAUSAL_LM",
        )

    def mixture(
        self, names: Sequence[str], weights: Sequence[float]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the pairs side by side: one adapter of rank len(names)·ρ, and its configuration."""
        scale = self.settings.lora_alpha / self.settings.rank
        state, rank = weighted_sum([self.state(name) for name in names], list(weights), scale)
        return state, self.config_dict() | {"r": rank, "lora_alpha": scale * rank}

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Add B A to copies of the weights; packed int8 and NF4 weights stay as they are.

        The frozen tensors are put back, not computed back: subtracting what was added would not be exact.
        """
        if self._quantised:
            yield
            return
        bases = [layer.get_base_layer() for layer in self._layers]
        frozen = [base.weight.data for base in bases]
        try:
            for layer, base in zip(self._layers, bases, strict=True):
                base.weight.data = base.weight.data.clone()
                layer.merge()
            yield
        finally:
            for layer, base, weight in zip(self._layers, bases, frozen, strict=True):
                base.weight.data = weight
                layer.merged_adapters.clear()

    def adapted_layers(self) -> Mapping[Any, AdaptedLayer] | None:
        merged = any(layer.merged for layer in self._layers)
        disabled = any(layer.disable_adapters for layer in self._layers)
        if (self.dropout and not merged) or self._quantised or disabled:
            return None
        return {
            layer: AdaptedLayer(
                layer.get_base_layer(),
                tuple(
                    LowRankPair(layer.lora_A[n].weight, layer.lora_B[n].weight, layer.scaling[n])
                    for n in layer.active_adapters
                    if not layer.merged
                ),
            )
            for layer in self._layers
        }

    @property
    def _quantised(self) -> bool:
        return bool(getattr(self.peft.base_model.model, "is_quantized", False))

    def add_frozen(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Add or replace an adapter of whatever ranks `state` has, at the scale a/ρ of the others."""
        from peft import LoraConfig

        state, rank = pad_to_common_rank(state)
        alpha = self.settings.lora_alpha / self.settings.rank * rank
        if name in self.names:
            self.peft.delete_adapter(name)
        config = self.config.to_dict() | {"r": rank, "lora_alpha": alpha, "lora_dropout": 0.0}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
            self.peft.add_adapter(name, LoraConfig(**config))
        self.names = (*(other for other in self.names if other != name), name)
        self.load(name, state)

    def set_seeded_a(self, name: str, seed: int) -> None:
        state = self.state(name)
        fixed = {k: seeded_a(k, tuple(v.shape), seed) if "lora_A" in k else v for k, v in state.items()}
        self.load(name, fixed)


def seeded_a(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return a factor A of (ρ, d_in) from its PEFT name and a seed: uniform in ±1/√d_in, as PEFT's own start.

    With A fixed and known to all, the average of the sites' B is exact (sharing `freeze_a`) and A is never
    communicated.
    """
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(number)
    return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(shape[-1])


def pad_to_common_rank(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Return the same products with rows of A and columns of B of zeros up to the largest rank; that rank."""
    rank = max(tensor.shape[0] for name, tensor in state.items() if "lora_A" in name)
    padded = {}
    for name, tensor in state.items():
        padding = (0, 0, 0, rank - tensor.shape[0]) if "lora_A" in name else (0, rank - tensor.shape[1])
        padded[name] = F.pad(tensor, padding)
    return padded, rank


def weighted_sum(
    states: list[dict[str, Tensor]], weights: list[float], scale: float
) -> tuple[dict[str, Tensor], int]:
    """Return one adapter whose ΔW is exactly Σ w_i ΔW_i: ranks side by side, weights folded into B.

    Args:
        states: m PEFT states of one shape.
        weights: one number each.
        scale: a/ρ of the sources.

    Returns:
        The state and its rank m·ρ. With a' = m·a its own scale a'/(m·ρ) equals `scale`.

    Raises:
        ValueError: `scale` is not positive.
    """
    if scale <= 0:
        raise ValueError(f"scale is {scale}; expected a positive a/ρ.")
    merged, rank = {}, 0
    for key in states[0]:
        if "lora_A" in key:
            merged[key] = torch.cat([state[key] for state in states], 0)  # (m·ρ, d_in)
            rank = merged[key].shape[0]
        else:
            merged[key] = torch.cat(  # (d_out, m·ρ)
                [w * state[key] for state, w in zip(states, weights, strict=True)], 1
            )
    return merged, rank


def _settings_of_file(
    settings: LoraChoice, lora: LoraSettings, config: Mapping[str, Any]
) -> tuple[LoraChoice, LoraSettings]:
    alpha = config["lora_alpha"]
    if type(alpha) not in (int, float) or not 0 < alpha < MOST_ALPHA:
        raise ConfigError(f"adapter_config.json: 'lora_alpha' is {alpha!r:.80}; expected above 0.")
    return settings, lora.model_copy(update={"rank": config["r"], "lora_alpha": alpha})


def _block_lora(settings: LoraChoice, lora: LoraSettings) -> LoraSettings:
    return lora


METHOD = PeftMethod(
    summary="LoRA: pairs of factors A and B beside linear layers.",
    source="Hu et al. 2022",
    settings=LoraChoice,
    adapters=LoraAdapters,
    effective=_block_lora,
    settings_of_file=_settings_of_file,
    several_active=True,
    per_example=True,
)
