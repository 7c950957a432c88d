# SPDX-License-Identifier: Apache-2.0
"""AdaLoRA with one rank allocation for all sites; its penalty, importance and masks (algorithms.md 7.10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.models.adapters.base import TensorSpec
from medflare.models.adapters.lora import Adapters
from medflare.models.adapters.methods import AdaLoraSettings
from medflare.models.adapters.rank_allocation import Importance, budget, masks, normalised

PREFIX = "importance."
Q, VALUES, P = ".lora_A", ".lora_E", ".lora_B"


class AdaLoraAdapters(Adapters):
    """One adapter of triplets. PEFT's own allocator is never asked: it decides from one site's gradients."""

    settings: AdaLoraSettings

    def __init__(self, model: Any, settings: AdaLoraSettings, names: Iterable[str], seed: int) -> None:
        super().__init__(model, settings, names, seed)
        if len(self.names) != 1:
            raise ConfigError(f"peft.method 'adalora' can have one adapter, not {len(self.names)}.")
        self._live = self.live(self.names[0])
        stems = sorted({key.removesuffix(VALUES) for key in self._live if key.endswith(VALUES)})
        self.modules = {stem: (stem + Q, stem + VALUES, stem + P) for stem in stems}
        self.importance = Importance(settings.beta)
        self.masks: dict[str, Tensor] = {}
        self.final = False

    def penalty(self) -> Tensor:
        """Mean of ‖PᵀP − I‖ and ‖QQᵀ − I‖ over all modules, times `orthogonality` (AdaLoRA, Eq. 4)."""
        parts = []
        for q, _, p in self.modules.values():
            for gram in (self._live[q] @ self._live[q].T, self._live[p].T @ self._live[p]):
                parts.append(torch.linalg.norm(gram - torch.eye(len(gram), device=gram.device)))
        return self.settings.orthogonality * torch.stack(parts).mean()

    # ---- one allocation for all sites --------------------------------------------------------------------

    def begin_round(self, totals: Mapping[str, Tensor], round_number: int, rounds: int) -> None:
        """Masks from the importance of all sites in the previous round; as before where there is none.

        As in AdaLoRA, a masked singular value may learn and come back until the ranks are final.
        """
        s = self.settings
        found = {stem: totals[PREFIX + stem] for stem in self.modules if PREFIX + stem in totals}
        if len(found) == len(self.modules):
            first, last = s.rank * len(found), s.target_rank * len(found)
            kept = budget(round_number, rounds, first, last, s.warm_rounds, s.final_rounds)
            self.masks, self.final = masks(found, kept), kept == last
        self.importance = Importance(s.beta)
        self._mask()

    def after_step(self) -> None:
        """Takes the step's importance; once ranks are final, keeps what is masked at zero."""
        self.importance.update(self._live)
        if self.final:
            self._mask()

    @torch.no_grad()
    def _mask(self) -> None:
        for stem, mask in self.masks.items():
            values = self._live[stem + VALUES]
            values.masked_fill_(~mask.view(-1, 1).to(values.device), 0.0)

    def sums_spec(self) -> TensorSpec:
        return {PREFIX + stem: ((self.settings.rank,), torch.float32) for stem in self.modules}

    def sums(self, weight: float) -> dict[str, Tensor]:
        found = normalised(self.importance.triplets(self.modules), weight)
        return {PREFIX + stem: scores for stem, scores in found.items()}
