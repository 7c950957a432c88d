# SPDX-License-Identifier: Apache-2.0
"""Bottleneck adapters after every feed-forward block: h + Σ s · (W_up GELU(W_down h + b_down) + b_up).

The adapters of Houlsby et al. 2019 and FedDAT, reduction 16. PEFT 0.21 has no such method, and AdapterHub's
`adapters` 1.3 needs transformers 4.57; hence this small module of our own, which only medflare opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.models.adapters.base import AdapterSet, PeftMethod

TYPE = "BOTTLENECK"


class BottleneckSettings(Settings):
    """h + W_up GELU(W_down h) after the feed-forward block of every layer; FedDAT's adapters.

    Attributes:
        reduction: hidden size over the width of the bottleneck.
        width: of the bottleneck, given outright instead.
    """

    method: Literal["bottleneck"] = "bottleneck"
    reduction: int = Field(16, ge=1)
    width: int | None = Field(None, ge=1)


class Bottleneck(nn.Module):
    """W_up GELU(W_down h); with W_up = 0 at the start it adds nothing."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(hidden, width), nn.Linear(width, hidden)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, h: Tensor) -> Tensor:
        """Return what is added to h: (..., hidden) -> (..., width) -> (..., hidden)."""
        narrow = F.gelu(self.down(h.to(self.down.weight.dtype)))  # (..., width)
        added: Tensor = self.up(narrow)  # (..., hidden)
        return added


class BottleneckAdapters(AdapterSet):
    """The named bottleneck adapters of one decoder.

    Raises:
        ConfigError: the model has no feed-forward blocks called `mlp`.
    """

    settings: BottleneckSettings

    def __init__(self, model: Any, settings: BottleneckSettings, names: Iterable[str], seed: int) -> None:
        self.settings, self.names = settings, tuple(names)
        blocks = [layer for name, layer in model.get_decoder().named_modules() if name.endswith(".mlp")]
        if not blocks:
            raise ConfigError(
                f"peft.method 'bottleneck' looks for feed-forward blocks called 'mlp', and "
                f"{type(model).__name__} has none. Use method 'lora'."
            )
        hidden = int(model.config.hidden_size)
        self.width = settings.width or max(hidden // settings.reduction, 1)
        self.peft: Any = nn.Module()
        self.peft.base = model
        self.peft.adapters = nn.ModuleDict()
        with seeded(seed):
            for name in self.names:
                adapters = [Bottleneck(hidden, self.width) for _ in blocks]
                self.peft.adapters[name] = nn.ModuleList(adapters).to(model.device)
        self.active: tuple[tuple[str, float], ...] = ()
        for number, block in enumerate(blocks):
            block.register_forward_hook(self._hook(number))
        self.use(self.names[:1])

    def _hook(self, number: int) -> Any:
        """Return the forward hook of one block: output (B, T, hidden) plus the active adapters' outputs."""

        def hook(block: Any, args: Any, output: Tensor) -> Tensor:
            added = [scale * self.peft.adapters[name][number](output) for name, scale in self.active]
            return output + torch.stack(added).sum(0).to(output.dtype) if added else output

        return hook

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        self.active = tuple((name, (scales or {}).get(name, 1.0)) for name in active)
        learning = set(train)
        for name in self.names:
            self.peft.adapters[name].requires_grad_(name in learning)

    def parameters(self, name: str) -> list[nn.Parameter]:
        return list(self.peft.adapters[name].parameters())

    def shared_parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters by names like `layers.0.down.weight`."""
        return {f"layers.{n}": p for n, p in self.peft.adapters[name].named_parameters()}

    def config_dict(self) -> dict[str, Any]:
        return {"peft_type": TYPE, "reduction": self.settings.reduction, "width": self.width}

    def mixture(
        self, names: Sequence[str], weights: Sequence[float]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        state = weighted_sum([self.state(name) for name in names], list(weights))
        return state, self.config_dict() | {"width": self.width * len(names)}


def weighted_sum(states: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    """Return one adapter whose output is exactly Σ w_i times that of the given ones, side by side."""
    out: dict[str, Tensor] = {}
    for key in states[0]:
        parts = [state[key] for state in states]
        scaled = [w * part for w, part in zip(weights, parts, strict=True)]
        if key.endswith("up.bias"):
            out[key] = torch.stack(scaled).sum(0)
        elif key.endswith("up.weight"):
            out[key] = torch.cat(scaled, 1)
        else:
            out[key] = torch.cat(parts, 0)
    return out


def _settings_of_file(
    settings: BottleneckSettings, lora: Any, config: Mapping[str, Any]
) -> tuple[BottleneckSettings, Any]:
    return settings.model_copy(update={"width": config["width"]}), lora


METHOD = PeftMethod(
    summary="Bottleneck adapters after every feed-forward block; our own module, PEFT has none.",
    source="Houlsby et al. 2019, FedDAT",
    settings=BottleneckSettings,
    adapters=BottleneckAdapters,
    settings_of_file=_settings_of_file,
    peft_opens=False,
    several_active=True,
    per_example=True,
)
