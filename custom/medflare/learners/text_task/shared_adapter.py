# SPDX-License-Identifier: Apache-2.0
"""The adapter of a text model at one site: which factors are communicated, stay, or were merged.

The setting `sharing` says which of LoRA's factors; of other adapters everything is communicated.
"""

from __future__ import annotations

from typing import Any

import torch

from medflare.core.errors import UpdateError
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.learners.text_task.settings import Sharing
from medflare.models.adapters.base import GENERIC
from medflare.models.text_model import TextModel

ADAPTER_PREFIX, MERGED_PREFIX = "adapter.", "merged."
MERGED = "merged"
A, B = "lora_A.weight", "lora_B.weight"
STAYS: dict[str, str] = {"freeze_a": A, "fedsa": B}
"""Way of sharing -> the factor that never leaves a site."""


class SharedAdapter:
    """Communicated part of a site's adapter: what the site sends, and what it takes from the server.

    Attributes:
        spec: names, shapes and dtypes of what is communicated.
    """

    def __init__(self, site: str, model: TextModel, sharing: Sharing, seed: int) -> None:
        self.site, self.model, self.sharing, self.seed = site, model, sharing, seed
        if sharing == "freeze_a":
            model.adapters.set_seeded_a(GENERIC, seed)
        self._merged = False
        self.spec: SharedSpec = {n: (tuple(t.shape), t.dtype) for n, t in self.state().items()}

    def is_communicated(self, name: str) -> bool:
        """Return whether a factor leaves the site."""
        local = STAYS.get(self.sharing)
        return local is None or not name.endswith(local)

    def parameters(self) -> int:
        """Return how many numbers are communicated."""
        return sum(torch.Size(shape).numel() for shape, _ in self.spec.values())

    def state(self) -> State:
        """Return copies of what is communicated."""
        state = self.model.adapters.state(GENERIC)
        return {ADAPTER_PREFIX + name: value for name, value in state.items() if self.is_communicated(name)}

    def live(self) -> dict[str, torch.nn.Parameter]:
        """Return the communicated tensors themselves."""
        factors = self.model.adapters.shared_parameters(GENERIC)
        return {ADAPTER_PREFIX + name: p for name, p in factors.items() if self.is_communicated(name)}

    def load(self, state: State) -> None:
        """Put the server's state in place.

        Raises:
            UpdateError: it does not fit; nothing has changed then.
        """
        merged = {n: t for n, t in state.items() if n.startswith(MERGED_PREFIX)}
        shared = {n: t for n, t in state.items() if n not in merged}
        whose = f"site '{self.site}': the server's state"
        if merged and self.sharing != "stack":
            raise UpdateError(
                f"{whose} holds {len(merged)} merged factors, as rule 'lora_stack' makes them, but "
                f"settings.sharing is '{self.sharing}'. Set it to 'stack', or take another rule."
            )
        check_state(shared, self.spec, whose)
        if merged:
            check_state(merged, self._merged_spec(merged), whose)
            self.model.adapters.add_frozen(
                MERGED, {n.removeprefix(MERGED_PREFIX): t for n, t in merged.items()}
            )
        self._merged = bool(merged)
        adapter = {n.removeprefix(ADAPTER_PREFIX): t for n, t in shared.items()}
        self.model.adapters.load(GENERIC, self.model.adapters.state(GENERIC) | adapter)
        self.use()

    def _merged_spec(self, merged: State) -> SharedSpec:
        """Return the spec of merged factors: every pair of the adapter, each of the rank that its A has.

        Rules that merge never go past the rank of a layer's weights. An adapter takes the largest rank for
        all layers, so one long factor could fill the site's memory.

        Raises:
            UpdateError: no product of that rank exists in a layer.
        """
        spec: SharedSpec = {}
        for name, (shape, dtype) in self.spec.items():
            if not name.endswith(A):
                continue
            pair = name.removesuffix(A)
            inputs, outputs = shape[1], self.spec[pair + B][0][0]
            pair = pair.replace(ADAPTER_PREFIX, MERGED_PREFIX, 1)
            first = merged.get(pair + A)
            rank = shape[0] if first is None or first.ndim != 2 else first.shape[0]
            most = min(inputs, outputs)
            if not 1 <= rank <= most:
                raise UpdateError(
                    f"site '{self.site}': the server's state: '{pair + A}' has rank {rank}, expected 1 to "
                    f"{most}, the largest that its layer has. Ask the server's administrator what made it."
                )
            spec |= {pair + A: ((rank, inputs), dtype), pair + B: ((outputs, rank), dtype)}
        return spec

    def use(self, train: bool = False) -> None:
        """Let the adapter compute, with what was merged before; with `train`, its own factors learn."""
        active = (GENERIC, MERGED) if self._merged else (GENERIC,)
        self.model.adapters.use(active, train=(GENERIC,) if train else ())
        if train and self.sharing == "freeze_a":
            for name, parameter in self.model.adapters.peft.named_parameters():
                if "lora_A" in name:
                    parameter.requires_grad_(False)

    def not_communicated(self) -> dict[str, Any]:
        """Return how the server completes an adapter that lacks one factor: A from the seed (`freeze_a`),
        B = 0 (`fedsa`: a hospital without a B of its own starts from zero)."""
        state = self.model.adapters.state(GENERIC)
        shapes = {name: list(value.shape) for name, value in state.items() if not self.is_communicated(name)}
        method: dict[str, Any] = self.model.adapters.not_communicated()
        return {"seed": self.seed, "shapes": shapes} | method

    def local_factors(self) -> State:
        """Return the factors that stay at the site."""
        state = self.model.adapters.state(GENERIC)
        return {name: value for name, value in state.items() if not self.is_communicated(name)}

    def restore(self, factors: State) -> None:
        """Put back what `local_factors` returned."""
        self.model.adapters.load(GENERIC, self.model.adapters.state(GENERIC) | factors)
