# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters on a frozen decoder, through PEFT: generic, its frozen copy, and the specialised one.

Names: `generic` is A_g, `anchor` is A_g^fr (the copy of A_g a site received this round), `specialised` is L_s
(algorithms.md 2.1). A_s of the paper is anchor + specialised.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.config import Settings
from medflare.errors import ConfigError

GENERIC, ANCHOR, SPECIALISED = "generic", "anchor", "specialised"


class LoraSettings(Settings):
    """Rank ρ, numerator a of the scale a/ρ, and the projections that carry a pair.

    Defaults are the ones recovered from the paper's traffic (59.28 M parameters, algorithms.md 2.1).
    """

    rank: int = 16
    lora_alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dropout: float = 0.0


class Adapters:
    """The named adapters of one decoder, and which of them compute and learn.

    Plain `PeftModel.set_adapter` clears the gradients flags of whatever it leaves, so two adapters in one
    loss silently lose one gradient (libraries.md 2, trap 1); `use` sets both sides explicitly.
    """

    def __init__(self, model: Any, settings: LoraSettings, names: Iterable[str], seed: int) -> None:
        from peft import LoraConfig, get_peft_model

        self.settings, self.names = settings, tuple(names)
        self.config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.lora_alpha,
            target_modules=list(settings.targets),
            lora_dropout=settings.dropout,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
            torch.manual_seed(seed)
            _check_targets(model, settings.targets)
            self.peft: Any = get_peft_model(model, self.config, adapter_name=self.names[0])
            for name in self.names[1:]:
                self.peft.add_adapter(name, self.config)
        self._layers: list[Any] = [
            m for m in self.peft.modules() if hasattr(m, "lora_A") and hasattr(m, "scaling")
        ]
        self.use((self.names[0],))

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        """Lets `active` adapters add their ΔW (each times its entry of `scales`), and `train` ones learn."""
        active, train = tuple(active), set(train)
        self.peft.base_model.set_adapter(list(active), inference_mode=True)
        for layer in self._layers:
            for name in active:
                layer.set_scale(name, (scales or {}).get(name, 1.0))
        for name in self.names:
            for parameter in self.parameters(name):
                parameter.requires_grad_(name in train)

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """A and B of every target of one adapter."""
        return [p for layer in self._layers for p in (layer.lora_A[name].weight, layer.lora_B[name].weight)]

    def state(self, name: str) -> dict[str, Tensor]:
        """A detached fp32 copy under PEFT's names, which carry no adapter name."""
        from peft import get_peft_model_state_dict

        found = get_peft_model_state_dict(self.peft, adapter_name=name)
        return {key: value.detach().to("cpu", torch.float32).clone() for key, value in found.items()}

    def live(self, name: str) -> dict[str, torch.nn.Parameter]:
        """The parameters themselves under the names of `state`."""
        own, part = {id(p) for p in self.parameters(name)}, f".{name}"
        found = {n: p for n, p in self.peft.named_parameters() if id(p) in own}
        return {n.replace(f"{part}.", ".").removesuffix(part): p for n, p in found.items()}

    def load(self, name: str, state: dict[str, Tensor]) -> None:
        """Puts values in place; KeyError if `state` is not exactly this adapter's set of names."""
        from peft import get_peft_model_state_dict

        here = get_peft_model_state_dict(self.peft, adapter_name=name)
        if set(here) != set(state):
            odd = sorted(set(here) ^ set(state))
            raise KeyError(f"adapter '{name}': {len(odd)} names differ, for instance '{odd[0]}'.")
        with torch.no_grad():
            for key, parameter in here.items():
                parameter.copy_(state[key])

    def put(self, name: str, state: dict[str, Tensor]) -> None:
        """Adds or replaces a frozen adapter of whatever ranks `state` has, at the scale a/ρ of the others."""
        from peft import LoraConfig

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

    def copy(self, source: str, target: str) -> None:
        """Gives one adapter the values of another."""
        self.load(target, self.state(source))

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
            f"lora.targets names {', '.join(missing)}, which this base model does not have. "
            f"Its layers are called: {', '.join(known)}."
        )


def seeded_a(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A factor A of (ρ, d_in) from its PEFT name and a seed: uniform in ±1/√d_in, PEFT's own first values.

    With A fixed and known to all, averaging B is exact (algorithms.md 1.4, `freeze_a`) and A never travels.
    """
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(number)
    return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(shape[-1])


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
