# SPDX-License-Identifier: Apache-2.0
"""AdaLoRA (Zhang et al. 2023) with one rank allocation for all sites: ΔW = a/ρ₀ P Λ Q.

Its penalty, importance and masks; rank_allocation.py holds the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import PeftMethod, TensorSpec, with_lora_targets
from medflare.models.adapters.layer_adapters import LayerAdapters
from medflare.models.adapters.rank_allocation import TripletImportance, budget, masks, normalised

PREFIX = "importance."
Q, VALUES, P = ".lora_A", ".lora_E", ".lora_B"


class AdaLoraSettings(Settings):
    """ΔW = a/ρ₀ P Λ Q with an orthogonality penalty; the server's sums decide which singular values stay.

    Attributes:
        rank: ρ₀, of every module at the start.
        target_rank: mean rank a module has at the end.
        alpha: a of the scale a/ρ₀.
        dropout: of a module's input.
        targets: of `lora` where none are named.
    """

    method: Literal["adalora"] = "adalora"
    rank: int = Field(12, ge=1)
    target_rank: int = Field(8, ge=1)
    alpha: int = Field(12, ge=1)
    orthogonality: float = Field(0.5, ge=0, description="weight of mean ‖PᵀP − I‖ in the loss")
    warm_rounds: float = Field(0.1, ge=0, lt=1, description="share of the rounds with all ranks")
    final_rounds: float = Field(0.3, ge=0, lt=1, description="share of the rounds with the final ranks")
    beta: float = Field(0.85, gt=0, lt=1, description="smoothing of importance and of its uncertainty")
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _shrinks(self) -> AdaLoraSettings:
        if self.target_rank > self.rank:
            raise ValueError(f"target_rank {self.target_rank} is above rank {self.rank}")
        if self.warm_rounds + self.final_rounds >= 1:
            raise ValueError("warm_rounds and final_rounds leave no round to allocate ranks in")
        return self


class AdaLoraAdapters(LayerAdapters):
    """One adapter of triplets. PEFT's own allocator is not used: it decides from one site's gradients."""

    settings: AdaLoraSettings

    @property
    def dropout(self) -> float:
        return self.settings.dropout

    def __init__(self, model: Any, settings: AdaLoraSettings, names: Iterable[str], seed: int) -> None:
        super().__init__(model, settings, names, seed)
        if len(self.names) != 1:
            raise ConfigError(f"peft.method 'adalora' can have one adapter, not {len(self.names)}.")
        self._parameters = self.shared_parameters(self.names[0])
        stems = sorted({key.removesuffix(VALUES) for key in self._parameters if key.endswith(VALUES)})
        self.modules = {stem: (stem + Q, stem + VALUES, stem + P) for stem in stems}
        self.importance = TripletImportance(settings.beta)
        self.masks: dict[str, Tensor] = {}
        self.final = False

    def peft_config(self) -> Any:
        from peft import AdaLoraConfig

        s = self.settings
        return AdaLoraConfig(
            init_r=s.rank,
            target_r=s.target_rank,
            lora_alpha=s.alpha,
            lora_dropout=s.dropout,
            orth_reg_weight=s.orthogonality,
            beta1=s.beta,
            beta2=s.beta,
            total_step=1,  # PEFT wants one; here rounds and the server decide
            target_modules=list(s.targets),
            task_type="CAUSAL_LM",
        )

    def penalty(self) -> Tensor:
        """Return mean ‖PᵀP − I‖ and ‖QQᵀ − I‖ of all modules, times `orthogonality` (AdaLoRA, Eq. 4)."""
        parts = []
        for q, _, p in self.modules.values():
            for gram in (
                self._parameters[q] @ self._parameters[q].T,
                self._parameters[p].T @ self._parameters[p],
            ):
                parts.append(torch.linalg.norm(gram - torch.eye(len(gram), device=gram.device)))
        return self.settings.orthogonality * torch.stack(parts).mean()

    # ---- one allocation for all sites --------------------------------------------------------------------

    def begin_round(self, totals: Mapping[str, Tensor], round_number: int, rounds: int) -> None:
        """Set the masks from the importance of all sites in the previous round; keep them if there is none.

        As in AdaLoRA, a masked singular value may learn and come back until the ranks are final.
        """
        s = self.settings
        scores = {stem: totals[PREFIX + stem] for stem in self.modules if PREFIX + stem in totals}
        if len(scores) == len(self.modules):
            first, last = s.rank * len(scores), s.target_rank * len(scores)
            kept = budget(round_number, rounds, first, last, s.warm_rounds, s.final_rounds)
            self.masks, self.final = masks(scores, kept), kept == last
        self.importance = TripletImportance(s.beta)
        self._mask()

    def after_step(self) -> None:
        """Record the step's importance; once ranks are final, set masked singular values to zero again."""
        self.importance.update(self._parameters)
        if self.final:
            self._mask()

    @torch.no_grad()
    def _mask(self) -> None:
        for stem, mask in self.masks.items():
            values = self._parameters[stem + VALUES]
            values.masked_fill_(~mask.view(-1, 1).to(values.device), 0.0)

    def auxiliary_sums_spec(self) -> TensorSpec:
        return {PREFIX + stem: ((self.settings.rank,), torch.float32) for stem in self.modules}

    def auxiliary_sums(self, weight: float) -> dict[str, Tensor]:
        importance = normalised(self.importance.triplets(self.modules), weight)
        return {PREFIX + stem: scores for stem, scores in importance.items()}


METHOD = PeftMethod(
    summary="AdaLoRA: triplets P, Λ, Q; one rank allocation for all sites from their summed importance.",
    source="Zhang et al. 2023",
    settings=AdaLoraSettings,
    adapters=AdaLoraAdapters,
    effective=with_lora_targets,
)
