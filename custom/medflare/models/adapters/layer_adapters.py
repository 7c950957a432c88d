# SPDX-License-Identifier: Apache-2.0
"""Adapters beside or in the linear layers of a frozen decoder, as PEFT's layer tuners make them."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.models.adapters.base import AdapterSet, assign, copies


class LayerAdapters(AdapterSet):
    """The named adapters of one decoder, and which of them compute and learn.

    PEFT's `PeftModel.set_adapter` clears `requires_grad` of every adapter that it deactivates, so two
    adapters in one loss silently lose one gradient; `use` sets both sides explicitly.

    Attributes:
        several_active: whether more than one adapter can compute, each with a scale.
        seed_generated: names in PEFT's file of tensors that every site makes from the seed.

    Raises:
        ConfigError: a target is not a layer of this model.
    """

    several_active: ClassVar[bool] = False
    seed_generated: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: Any, settings: Any, names: Iterable[str], seed: int) -> None:
        from peft import get_peft_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        self.settings, self.names, self.seed = settings, tuple(names), seed
        self.config = self.peft_config()
        with seeded(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
            _check_targets(model, settings.targets)
            self.peft: Any = get_peft_model(model, self.config, adapter_name=self.names[0])
            for name in self.names[1:]:
                self.peft.add_adapter(name, self.config)
        self._layers: list[Any] = [m for m in self.peft.modules() if isinstance(m, BaseTunerLayer)]
        for layer in self._layers:
            # PEFT casts a layer's input to the adapter's fp32 and autocast casts it back to bf16 at once.
            layer.cast_input_dtype_enabled = False
        self.use((self.names[0],))

    @abstractmethod
    def peft_config(self) -> Any:
        """Return PEFT's configuration of one adapter."""

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        active, train = tuple(active), set(train)
        self.peft.base_model.active_adapter = list(active)
        for layer in self._layers:  # PEFT's own `set_adapter` walks through all modules of the model
            layer.set_adapter(list(active), inference_mode=True)
            if self.several_active:
                for name in active:
                    layer.set_scale(name, (scales or {}).get(name, 1.0))
        for name in self.names:
            for parameter in self.parameters(name):
                parameter.requires_grad_(name in train)

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """Return what learns in every target of one adapter; of LoRA its A and B, in turn."""
        holders = (getattr(layer, part, {}) for layer in self._layers for part in layer.adapter_layer_names)
        parts = (holder[name] for holder in holders if name in holder)
        single = torch.nn.Parameter
        return [p for part in parts for p in ([part] if isinstance(part, single) else part.parameters())]

    def shared_parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        learning, infix = {id(p) for p in self.parameters(name)}, f".{name}"
        named = {n: p for n, p in self.peft.named_parameters() if id(p) in learning}
        return {n.replace(f"{infix}.", ".").removesuffix(infix): p for n, p in named.items()}

    def _peft_state(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one adapter, not copied, under PEFT's names, which carry no adapter name."""
        from peft import get_peft_model_state_dict

        state: dict[str, Tensor] = get_peft_model_state_dict(self.peft, adapter_name=name)
        return state

    def state(self, name: str) -> dict[str, Tensor]:
        return {n: value for n, value in self.file_tensors(name).items() if n not in self.seed_generated}

    def file_tensors(self, name: str) -> dict[str, Tensor]:
        """Return what PEFT's file holds: what is communicated, and what every site makes from the seed."""
        return copies(self._peft_state(name))

    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        targets = {n: t for n, t in self._peft_state(name).items() if n not in self.seed_generated}
        assign(name, targets, state)

    def load_file_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        assign(name, self._peft_state(name), tensors)

    def config_dict(self) -> dict[str, Any]:
        config = self.config.to_dict()
        config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        config["target_modules"] = list(self.settings.targets)
        config["inference_mode"] = True
        return {key: getattr(value, "value", value) for key, value in config.items()}


def _check_targets(model: Any, targets: Iterable[str]) -> None:
    """Raise ConfigError unless every target names a layer: PEFT is silent about those that do not."""
    present = {name.rsplit(".", 1)[-1] for name, layer in model.named_modules() if hasattr(layer, "weight")}
    missing = [target for target in targets if target not in present]
    if missing:
        linear = (n.rsplit(".", 1)[-1] for n, m in model.named_modules() if "Linear" in type(m).__name__)
        known = sorted({*linear, *(n for n in present if n.startswith("c_"))})
        raise ConfigError(
            f"targets names {', '.join(missing)}, which this base model does not have. "
            f"Its layers are called: {', '.join(known)}."
        )
