# SPDX-License-Identifier: Apache-2.0
"""Adapters in the layers of a frozen decoder, through PEFT: generic, its frozen copy, the specialised one.

Names: `generic` is A_g, `anchor` is A_g^fr (the copy of A_g a site received this round), `specialised` is L_s
(algorithms.md 2.1). A_s of the paper is anchor + specialised.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.models.adapters.base import AdapterSet
from medflare.models.adapters.methods import (
    METHODS,
    AdaLoraSettings,
    FedParaSettings,
    LoraSettings,
    VeraSettings,
)

__all__ = ["ANCHOR", "GENERIC", "SPECIALISED", "Adapters", "LoraSettings"]

GENERIC, ANCHOR, SPECIALISED = "generic", "anchor", "specialised"
VERA_A, VERA_B = "base_model.vera_A", "base_model.vera_B"
LayerSettings = LoraSettings | AdaLoraSettings | FedParaSettings | VeraSettings


class Adapters(AdapterSet):
    """The named adapters of one decoder, and which of them compute and learn.

    Plain `PeftModel.set_adapter` clears the gradients flags of whatever it leaves, so two adapters in one
    loss silently lose one gradient (libraries.md 2, trap 1); `use` sets both sides explicitly.
    """

    def __init__(self, model: Any, settings: LayerSettings, names: Iterable[str], seed: int) -> None:
        from peft import get_peft_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        self.settings, self.names, self.seed = settings, tuple(names), seed
        configure = METHODS[settings.method].configure
        assert configure is not None
        self.config = configure(settings, int(model.config.hidden_size), seed)
        with seeded(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
            _check_targets(model, settings.targets)
            self.peft: Any = get_peft_model(model, self.config, adapter_name=self.names[0])
            for name in self.names[1:]:
                self.peft.add_adapter(name, self.config)
        self._layers: list[Any] = [m for m in self.peft.modules() if isinstance(m, BaseTunerLayer)]
        self.use((self.names[0],))

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        """Lets `active` adapters add their ΔW (each times its entry of `scales`), and `train` ones learn."""
        active, train = tuple(active), set(train)
        self.peft.base_model.set_adapter(list(active), inference_mode=True)
        if METHODS[self.settings.method].several:
            for layer in self._layers:
                for name in active:
                    layer.set_scale(name, (scales or {}).get(name, 1.0))
        for name in self.names:
            for parameter in self.parameters(name):
                parameter.requires_grad_(name in train)

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """What learns in every target of one adapter; of LoRA its A and B, in turn."""
        holders = (getattr(layer, part, {}) for layer in self._layers for part in layer.adapter_layer_names)
        parts = (holder[name] for holder in holders if name in holder)
        own = torch.nn.Parameter
        return [p for part in parts for p in ([part] if isinstance(part, own) else part.parameters())]

    def _file(self, name: str) -> dict[str, Tensor]:
        """Live tensors of one adapter under PEFT's names, which carry no adapter name."""
        from peft import get_peft_model_state_dict

        found: dict[str, Tensor] = get_peft_model_state_dict(self.peft, adapter_name=name)
        return found

    def state(self, name: str) -> dict[str, Tensor]:
        """A detached fp32 copy of what travels, under PEFT's names."""
        return {key: value for key, value in self.exported(name).items() if key not in (VERA_A, VERA_B)}

    def live(self, name: str) -> dict[str, torch.nn.Parameter]:
        """The parameters themselves under the names of `state`."""
        own, part = {id(p) for p in self.parameters(name)}, f".{name}"
        found = {n: p for n, p in self.peft.named_parameters() if id(p) in own}
        return {n.replace(f"{part}.", ".").removesuffix(part): p for n, p in found.items()}

    def exported(self, name: str) -> dict[str, Tensor]:
        """What PEFT's file holds: what travels, and what every site makes from the seed."""
        return {k: v.detach().to("cpu", torch.float32).clone() for k, v in self._file(name).items()}

    def load(self, name: str, state: dict[str, Tensor]) -> None:
        """Puts values in place; KeyError if `state` is not exactly this adapter's set of names."""
        self._put_in_place(name, state, (VERA_A, VERA_B))

    def restore(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Takes what PEFT's file holds; KeyError if that is not exactly this adapter's set of names."""
        self._put_in_place(name, tensors, ())

    def _put_in_place(self, name: str, state: dict[str, Tensor], left_out: tuple[str, ...]) -> None:
        here = {key: value for key, value in self._file(name).items() if key not in left_out}
        if set(here) != set(state):
            odd = sorted(set(here) ^ set(state))
            raise KeyError(f"adapter '{name}': {len(odd)} names differ, for instance '{odd[0]}'.")
        with torch.no_grad():
            for key, parameter in here.items():
                parameter.copy_(state[key])

    def mixture(
        self, names: Sequence[str], weights: Sequence[float]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of LoRA: the pairs side by side, ranks added up."""
        assert isinstance(self.settings, LoraSettings)
        scale = self.settings.lora_alpha / self.settings.rank
        state, rank = weighted_sum([self.state(name) for name in names], list(weights), scale)
        return state, self.config_dict() | {"r": rank, "lora_alpha": scale * rank}

    def untravelled(self) -> dict[str, Any]:
        """VeRA's A and B: the seed they are made from, and a checksum that sites compare before round 1."""
        if not isinstance(self.settings, VeraSettings):
            return {}
        fixed = {key: value for key, value in self.exported(self.names[0]).items() if key in (VERA_A, VERA_B)}
        sums = hashlib.sha256()
        for key in sorted(fixed):
            sums.update(fixed[key].contiguous().numpy().tobytes())
        shapes = {key: list(value.shape) for key, value in fixed.items()}
        return {"seed": self.seed, "shapes": shapes, "sha256": sums.hexdigest()}

    def put(self, name: str, state: dict[str, Tensor]) -> None:
        """Adds or replaces a frozen adapter of whatever ranks `state` has, at the scale a/ρ of the others."""
        from peft import LoraConfig

        assert isinstance(self.settings, LoraSettings)
        state, rank = of_one_rank(state)
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
        """Gives one adapter the A factors that every site and the server can make from the seed alone."""
        state = self.state(name)
        fixed = {k: seeded_a(k, tuple(v.shape), seed) if "lora_A" in k else v for k, v in state.items()}
        self.load(name, fixed)

    def config_dict(self) -> dict[str, Any]:
        """PEFT's adapter_config.json as JSON types, for a writer that has no model."""
        found = self.config.to_dict()
        found = {key: sorted(value) if isinstance(value, set) else value for key, value in found.items()}
        found["target_modules"] = list(self.settings.targets)
        found["inference_mode"] = True
        return {key: getattr(value, "value", value) for key, value in found.items()}


def _check_targets(model: Any, targets: Iterable[str]) -> None:
    """ConfigError unless every target names a layer: PEFT is silent about those that do not."""
    present = {name.rsplit(".", 1)[-1] for name, layer in model.named_modules() if hasattr(layer, "weight")}
    missing = [target for target in targets if target not in present]
    if missing:
        layers = (n.rsplit(".", 1)[-1] for n, m in model.named_modules() if "Linear" in type(m).__name__)
        known = sorted({*layers, *(n for n in present if n.startswith("c_"))})
        raise ConfigError(
            f"targets names {', '.join(missing)}, which this base model does not have. "
            f"Its layers are called: {', '.join(known)}."
        )


def seeded_a(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A factor A of (ρ, d_in) from its PEFT name and a seed: uniform in ±1/√d_in, PEFT's own first values.

    With A fixed and known to all, averaging B is exact (algorithms.md 1.4, `freeze_a`) and A never travels.
    """
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(number)
    return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(shape[-1])


def made_at_every_site(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Tensor]:
    """What never travelled, of the names and shapes in `untravelled`: from the seed, or zeros (B of LoRA)."""
    if VERA_A in shapes:
        return vera_projections(tuple(shapes[VERA_A]), tuple(shapes[VERA_B]), seed)
    return {
        name: seeded_a(name, tuple(shape), seed) if ".lora_A" in name else torch.zeros(tuple(shape))
        for name, shape in shapes.items()
    }


def vera_projections(a: tuple[int, ...], b: tuple[int, ...], seed: int) -> dict[str, Tensor]:
    """VeRA's fixed A (ρ, d_in) and B (d_out, ρ) as PEFT draws them: Kaiming-uniform, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in ((VERA_A, a), (VERA_B, b)):
        bound = math.sqrt(3.0) * (math.sqrt(2.0) / math.sqrt(shape[1]))
        out[name] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return out


def of_one_rank(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """The same products with rows of A and columns of B of zeros up to the largest rank, and that rank."""
    rank = max(tensor.shape[0] for name, tensor in state.items() if "lora_A" in name)
    out = {}
    for name, tensor in state.items():
        padding = (0, 0, 0, rank - tensor.shape[0]) if "lora_A" in name else (0, rank - tensor.shape[1])
        out[name] = F.pad(tensor, padding)
    return out, rank


def weighted_sum(
    states: list[dict[str, Tensor]], weights: list[float], scale: float
) -> tuple[dict[str, Tensor], int]:
    """One adapter whose ΔW is exactly Σ w_i ΔW_i: ranks side by side, weights folded into B.

    Args:
        states: PEFT states of one shape; weights: one number each; scale: a/ρ of the sources.
    Returns: the state and its rank m·ρ. With a' = m·a its own scale a'/(m·ρ) equals `scale`.
    """
    if scale <= 0:
        raise ValueError(f"scale is {scale}; expected a positive a/ρ.")
    merged, rank = {}, 0
    for key in states[0]:
        if "lora_A" in key:
            merged[key] = torch.cat([state[key] for state in states], 0)
            rank = merged[key].shape[0]
        else:
            merged[key] = torch.cat([w * state[key] for state, w in zip(states, weights, strict=True)], 1)
    return merged, rank
