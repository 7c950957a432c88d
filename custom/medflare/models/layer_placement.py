# SPDX-License-Identifier: Apache-2.0
"""The layers of one language model over several GPUs, for a model that one of them cannot hold.

Layers lie in their order, so that states change the card as few times as possible. Whatever is no layer
(embeddings, last norm, output layer) lies on the first card, where states therefore begin and end: code that
reads a model's states or computes its loss needs to know of one card alone. (accelerate's own map,
`infer_auto_device_map`, puts norm and output layer on the last.) accelerate's hooks bring each layer's inputs
to its card.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from medflare.core.errors import ConfigError
from medflare.models.frozen_weights import LOADED, PACKED, shapes_of


def place_layers(folder: Path, devices: Sequence[str], precision: str) -> dict[str, str]:
    """Return where each part of a folder's causal language model lies, by its name.

    Raises:
        ConfigError: the model cannot be spread, or has fewer layers than there are devices.
    """
    model = shapes_of(folder, precision)
    packed = PACKED[precision] / LOADED[precision].itemsize if precision in PACKED else 1.0
    return placement(model, devices, packed)


def placement(model: Any, devices: Sequence[str], packed: float = 1.0) -> dict[str, str]:
    """Return where each part of a model lies, about as many bytes on each device, at least one layer.

    Args:
        model: on torch's meta device for instance.
        packed: bytes of a layer's weight over those of one outside the layers.
    """
    name, layers = _layers(model)
    if len(layers) < len(devices):
        raise ConfigError(
            f"spread_layers: the model has {len(layers)} layers, and devices in site.yaml names "
            f"{len(devices)}. Name no more devices than layers."
        )
    sizes = [packed * sum(p.numel() for p in layer.parameters()) for layer in layers]
    held = float(sum(p.numel() for p in model.parameters())) - sum(sizes) / packed
    left, card = held + sum(sizes), 0
    places = _others(model, name, devices[0])
    for number, size in enumerate(sizes):
        later = len(devices) - 1 - card
        full = held + size / 2 > left / (later + 1)
        if number and later and (full or len(sizes) - number == later):
            card, left, held = card + 1, left - held, 0.0
        places[f"{name}.{number}"] = devices[card]
        held += size
    return places


def _layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Return the list of the decoder's layers, and its name."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    count = int(getattr(model.config, "num_hidden_layers", 0))
    found = [(name, module) for name, module in lists if len(module) == count]
    if not found:
        raise ConfigError(
            f"spread_layers: {type(model).__name__} has no list of its {count} layers that could be spread. "
            "Leave spread_layers out."
        )
    return min(found, key=lambda item: item[0].count("."))


def _others(model: nn.Module, layers: str, device: str, prefix: str = "") -> dict[str, str]:
    """Return the place of every part that is not, and does not hold, the list of layers."""
    places = {prefix + name: device for name, _ in model.named_parameters(recurse=False)}
    for name, child in model.named_children():
        whole = prefix + name
        if layers == whole:
            continue
        if layers.startswith(f"{whole}."):
            places |= _others(child, layers, device, f"{whole}.")
        else:
            places[whole] = device
    return places


def gpus_of(module: nn.Module) -> list[int]:
    """Return the numbers of the GPUs that a module's parameters lie on; none on a processor."""
    return sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
