# SPDX-License-Identifier: Apache-2.0
"""Estimate of the memory of one training step, from shapes alone; no weight is loaded.

The networks are built on torch's meta device, where tensors have shapes and no values, and one forward pass
is run there. Parameters are counted from the networks; activations are the tensors that autograd keeps for
the backward pass, counted by their storages. Virtual tokens need values to start from; they cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from medflare.core.method import MethodSettings, import_function
from medflare.data.settings.site import SiteConfig
from medflare.learners.registry import get_method
from medflare.learners.training_step import TrainingStep
from medflare.models.backbone import device_of, resolve_precision
from medflare.models.frozen_weights import frozen_bytes

RUNTIME = 1_100_000_000
"""Bytes of a worker before it trains: torch, transformers, peft, monai. benchmarks/step_memory.py has 1.1 to
1.3 GB with a small hospital's data; 0.65 are pages of program files, of which other machines count fewer."""
WORKSPACE = 1.5
"""Times what autograd keeps: temporaries of the backward pass, and blocks that the allocator does not give
back (measured on CPU: 1.6 in FedMRG)."""
VIRTUAL_TOKENS = ("prefix", "prompt", "p_tuning")
"""Adapters of virtual tokens, which need values to start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of a training step, by what they are for.

    Attributes:
        frozen: weights that do not learn.
        learning: weights that do, in fp32, with gradient and AdamW's two moments: 16 bytes each.
        exchange: the state as received and the update as sent: 8 bytes for each learning weight.
        activations: what autograd keeps with its workspace, and the gradient of its largest tensor.
    """

    frozen: int
    learning: int
    exchange: int
    activations: int
    runtime: int = RUNTIME

    @property
    def total(self) -> int:
        return self.frozen + self.learning + self.exchange + self.activations + self.runtime


def footprint(method: str, settings: Mapping[str, Any], site: SiteConfig) -> Footprint | None:
    """Return the estimate for a job at a site; None for networks that cannot be built from shapes."""
    entry = get_method(method)
    if entry.footprint is None:
        return None
    precision = resolve_precision(site.backbone.precision, device_of(site.device))
    chosen: MethodSettings = entry.resolve(settings)
    if chosen.peft_method in VIRTUAL_TOKENS:
        return None
    with _shapes_only():
        step: TrainingStep = import_function(entry.footprint)(chosen, site.backbone.folder, precision)
        return _measure(step)


@contextmanager
def _shapes_only() -> Iterator[None]:
    with torch.device("meta"):
        yield


def _measure(step: TrainingStep) -> Footprint:
    parameters = [p for network in step.networks for p in network.parameters()]
    learning = sum(p.numel() for p in parameters if p.requires_grad)
    kept, largest = _kept(parameters, step.forward)
    return Footprint(
        frozen=sum(frozen_bytes(network, step.precision) for network in step.networks),
        learning=16 * learning,
        exchange=8 * learning,
        activations=round(WORKSPACE * kept) + largest,
    )


def _kept(parameters: list[nn.Parameter], forward: Callable[[], Any]) -> tuple[int, int]:
    """Return (bytes that autograd keeps for the backward pass, bytes of the largest of them)."""
    weights = {p.untyped_storage()._cdata for p in parameters}
    saved: dict[int, Any] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        forward()
    sizes = [storage.nbytes() for storage in saved.values()]
    return sum(sizes), max(sizes, default=0)
