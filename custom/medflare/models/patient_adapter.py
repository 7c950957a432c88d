# SPDX-License-Identifier: Apache-2.0
"""Low-rank factors made for each patient by a small network, beside whatever else is in a decoder's layers.

FedTAR (paper 001), Eq. 3 and 4 in our convention ΔW = s B A (TAR-8, TAR-9, TAR-10):
φ_p = W_proj q_p + b_proj of width d, h(φ_p) = (A_p, B_p) for every target, y = W x + s B_p (A_p x). No W_p is
ever made: every row of a batch has factors of its own, applied by two batched products.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.models.adapters.base import assign, copies

PROJECTION = "projection."
"""Before the names of W_proj and b_proj, which stay at a site whose mixture is its own (TAR-11)."""


class PatientAdapterSettings(Settings):
    """Size and places of the generated factors; rank and scale a/ρ are the paper's.

    Attributes:
        width: d. At the decoder's own width one generator would have as many parameters as four of the layers
            it adapts.
        rank: ρ.
        lora_alpha: a of the scale a/ρ.
        targets: last parts of the names of layers, as many as tell them apart, for instance `attn.c_proj`.
    """

    width: int = Field(default=64, ge=1)
    rank: int = Field(default=4, ge=1)
    lora_alpha: float = Field(default=128, gt=0)
    targets: tuple[str, ...] = ("q_proj", "v_proj")

    @property
    def scale(self) -> float:
        """s = a/ρ."""
        return self.lora_alpha / self.rank


class Generator(nn.Module):
    """h of one layer: φ (P, d) -> A (P, ρ, d_in) and B (P, d_out, ρ), each an affine map.

    A starts at the size LoRA's own A has for ‖φ‖ = 1, B at zero, so that nothing is added at first (TAR-10).
    """

    def __init__(self, width: int, rank: int, d_in: int, d_out: int) -> None:
        super().__init__()
        self.rank, self.d_in, self.d_out = rank, d_in, d_out
        self.a, self.b = nn.Linear(width, rank * d_in), nn.Linear(width, d_out * rank)
        nn.init.uniform_(self.a.weight, -1 / math.sqrt(d_in), 1 / math.sqrt(d_in))
        for zero in (self.a.bias, self.b.weight, self.b.bias):
            nn.init.zeros_(zero)

    def forward(self, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors A (P, ρ, d_in) and B (P, d_out, ρ) of patients embedded as (P, width)."""
        a, b = self.a(embedded), self.b(embedded)  # (P, ρ·d_in), (P, d_out·ρ)
        return a.unflatten(1, (self.rank, self.d_in)), b.unflatten(1, (self.d_out, self.rank))


class PatientAdapter(nn.Module):
    """The generators of one decoder and the hooks by which they act; the decoder itself is not changed.

    Outside `patients` nothing is added. Works on plain layers and on those that PEFT has wrapped.

    Args:
        model: the decoder, plain or with adapters; its own parameters are not touched.
        components: K, of the mixture that q_p is of.
        seed: of the first values, the same at every site.
    """

    def __init__(
        self, model: nn.Module, settings: PatientAdapterSettings, components: int, seed: int
    ) -> None:
        super().__init__()
        self.settings, self.components = settings, components
        layers = target_layers(model, settings.targets)
        self.names = tuple(layers)
        with seeded(seed):
            self.projection = nn.Linear(components, settings.width)
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(settings.width))
            nn.init.zeros_(self.projection.bias)
            shapes = [features(name, layer) for name, layer in layers.items()]
            generators = [Generator(settings.width, settings.rank, *shape) for shape in shapes]
        self.generators = nn.ModuleList(generators)
        self.to(next(model.parameters()).device)
        self._factors: list[tuple[Tensor, Tensor]] = []
        self._hooks = [
            layer.register_forward_hook(self._hook(number)) for number, layer in enumerate(layers.values())
        ]

    def _hook(self, number: int) -> Any:
        """Return the forward hook of one layer: output (rows, T, d_out) plus s B_p A_p x."""

        def hook(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            if not self._factors:
                return output
            added = patient_term(args[0], *self._factors[number])
            return output + (self.settings.scale * added).to(output.dtype)

        return hook

    @contextlib.contextmanager
    def patients(self, assigned: Tensor) -> Iterator[None]:
        """Use the factors of patients inside: row i of a batch is patient i.

        With beams, rows of one patient stand together, as `generate` orders them.

        The factors are made once: one backward pass for each `patients`, and inside it where activations are
        checkpointed. assigned: (P, K) rows q_p.
        """
        if assigned.dim() != 2 or assigned.shape[1] != self.components:
            raise ValueError(f"q has shape {tuple(assigned.shape)}; expected (patients, {self.components}).")
        before = self._factors
        weight = self.projection.weight
        embedded = self.projection(assigned.to(weight.device, weight.dtype))  # (P, K) -> (P, width)
        self._factors = [generator(embedded) for generator in self.generators]
        try:
            yield
        finally:
            self._factors = before

    @property
    def acts(self) -> bool:
        """Whether factors of patients are in use."""
        return bool(self._factors)

    def remove(self) -> None:
        """Remove the hooks; the decoder is then as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._factors = [], []

    # ---- what is communicated ----------------------------------------------------------------------------

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters themselves by name: `projection.weight`, `<layer>.b.weight` and so on."""
        shared = {f"{PROJECTION}{n}": p for n, p in self.projection.named_parameters()}
        for name, generator in zip(self.names, self.generators, strict=True):
            shared |= {f"{name}.{n}": p for n, p in generator.named_parameters()}
        return shared

    def state(self) -> dict[str, Tensor]:
        """Return detached fp32 copies under the names of `shared_parameters`."""
        return copies(self.shared_parameters())

    def load(self, state: dict[str, Tensor]) -> None:
        """Put values in place; KeyError if `state` is not exactly the set of names."""
        assign("patient", self.shared_parameters(), state)

    def config_dict(self) -> dict[str, Any]:
        """Return what a reader of the exported tensors must know, as JSON types."""
        settings = self.settings.model_dump(mode="json")
        return {
            "peft_type": "PATIENT_LORA",
            "components": self.components,
            "layers": list(self.names),
            **settings,
        }


def patient_term(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return B_p A_p x for every position of every row, without forming B_p A_p.

    Args:
        x: (P·r, T, d_in), r rows for each patient, one patient's together.
        a: (P, ρ, d_in).
        b: (P, d_out, ρ).

    Returns:
        (P·r, T, d_out) in the dtype of the factors.

    Raises:
        ValueError: the number of rows is no multiple of the number of patients.
    """
    patients = len(a)
    if x.dim() != 3 or len(x) % patients:
        raise ValueError(
            f"a layer sees a batch of shape {tuple(x.shape)} for {patients} patients; expected (rows, "
            f"tokens, {a.shape[2]}) with the same number of rows for each patient."
        )
    rows = x.to(a.dtype).reshape(patients, -1, a.shape[2])  # (P, r·T, d_in)
    narrow = torch.bmm(rows, a.mT)  # (P, r·T, ρ)
    return torch.bmm(narrow, b.mT).reshape(len(x), x.shape[1], b.shape[1])  # (P·r, T, d_out)


def target_layers(model: nn.Module, targets: tuple[str, ...]) -> dict[str, nn.Module]:
    """Return name -> layer of every layer whose name ends in a target.

    Names are the same with and without PEFT's wrapper around the model.

    Raises:
        ConfigError: a target names no layer; lists the layers that exist.
    """
    layers: dict[str, nn.Module] = {}
    unused = set(targets)
    for name, layer in model.named_modules():
        matched = {target for target in targets if name == target or name.endswith(f".{target}")}
        if matched:
            layers[name.removeprefix("base_model.model.")] = layer
            unused -= matched
    if unused or not layers:
        known = sorted({name.rsplit(".", 1)[-1] for name, layer in model.named_modules() if _shape(layer)})
        raise ConfigError(
            f"patient adapter: targets names {', '.join(sorted(unused)) or 'nothing'}, which this base model "
            f"does not have. Its layers are called: {', '.join(known)}."
        )
    return layers


def features(name: str, layer: nn.Module) -> tuple[int, int]:
    """Return (d_in, d_out) of a linear layer, of GPT-2's Conv1D, and of either inside PEFT's wrapper."""
    shape = _shape(layer)
    if shape is None:
        raise ConfigError(
            f"patient adapter: target '{name}' is a {type(layer).__name__}, expected a linear layer."
        )
    return shape


def _shape(layer: nn.Module) -> tuple[int, int] | None:
    for one, other in (("in_features", "out_features"), ("nx", "nf")):
        if isinstance(getattr(layer, one, None), int) and isinstance(getattr(layer, other, None), int):
            return int(getattr(layer, one)), int(getattr(layer, other))
    return None
