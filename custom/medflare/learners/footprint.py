# SPDX-License-Identifier: Apache-2.0
"""How much memory one training step of a job needs: an estimate from shapes alone, no weight is loaded.

The networks are built on torch's meta device, where tensors have shapes and no values, and one forward pass
is run there. Parameters are counted from the networks; activations are the tensors that autograd keeps for
the backward pass, counted by their storages. Virtual tokens need values to start from; they cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from medflare.data.settings.site import SiteConfig
from medflare.learners.facts import resolved
from medflare.learners.footprint_steps import STEPS, Step
from medflare.models.backbone import device_of, resolve_precision

RUNTIME = 1_000_000_000
"""Bytes of a worker before it trains: torch, transformers, peft, monai (measured: 0.9 to 1.0 GB)."""
WORKSPACE = 1.5
"""Times what autograd keeps: temporaries of the backward pass, and blocks that the allocator does not give
back (measured on CPU: 1.6 in FedMRG)."""
_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "nf4": 0.56}
"""Bytes of a frozen weight; NF4 with the constants of its blocks of 64."""


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


def footprint(method: str, settings: dict[str, Any], site: SiteConfig) -> Footprint | None:
    """The estimate for a job at a site; None for a method whose networks cannot be built from shapes."""
    build = STEPS.get(method)
    if build is None:
        return None
    precision = resolve_precision(site.backbone.precision, device_of(site.device))
    chosen: Any = resolved(method, settings)
    if chosen_peft(chosen) in ("prefix", "prompt", "p_tuning"):
        return None
    with _shapes_only():
        step = build(chosen, site.backbone.folder, precision)
        return _measure(step)


def chosen_peft(settings: Any) -> str:
    """The parameter-efficient method of a job; empty where all weights learn."""
    block = getattr(settings, "peft", None) or getattr(getattr(settings, "model", None), "peft", None)
    return str(getattr(block, "method", ""))


@contextmanager
def _shapes_only() -> Iterator[None]:
    with torch.device("meta"):
        yield


def _measure(step: Step) -> Footprint:
    parameters = [p for network in step.networks for p in network.parameters()]
    learning = sum(p.numel() for p in parameters if p.requires_grad)
    frozen = sum(p.numel() for p in parameters if not p.requires_grad)
    kept, largest = _kept(parameters, step.forward)
    return Footprint(
        frozen=round(frozen * _BYTES[step.precision]),
        learning=16 * learning,
        exchange=8 * learning,
        activations=round(WORKSPACE * kept) + largest,
    )


def _kept(parameters: list[nn.Parameter], forward: Callable[[], Any]) -> tuple[int, int]:
    """(bytes that autograd keeps for the backward pass, bytes of the largest of them)."""
    own = {p.untyped_storage()._cdata for p in parameters}
    found: dict[int, Any] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            found[storage._cdata] = storage
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        forward()
    sizes = [storage.nbytes() for storage in found.values()]
    return sum(sizes), max(sizes, default=0)
