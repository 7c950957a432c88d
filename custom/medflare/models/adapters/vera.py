# SPDX-License-Identifier: Apache-2.0
"""VeRA (Kopiczko et al. 2024): vectors b and d are communicated, the random A and B made from the seed."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from medflare.core.config import Settings
from medflare.models.adapters.base import PeftMethod, with_lora_targets
from medflare.models.adapters.layer_adapters import LayerAdapters

VERA_A, VERA_B = "base_model.vera_A", "base_model.vera_B"


class VeraSettings(Settings):
    """ΔW = diag(b) B diag(d) A with A and B made from the run's seed at every site; b and d travel.

    Attributes:
        rank: of A and B.
        d_initial: first value of d.
        dropout: of a module's input.
        targets: of `lora` where none are named.
    """

    method: Literal["vera"] = "vera"
    rank: int = Field(256, ge=1)
    d_initial: float = Field(0.1, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] = ()


class VeraAdapters(LayerAdapters):
    """One adapter of vectors over matrices that all layers and all sites share."""

    settings: VeraSettings
    seed_generated = (VERA_A, VERA_B)

    @property
    def dropout(self) -> float:
        return self.settings.dropout

    def peft_config(self) -> Any:
        from peft import VeraConfig

        return VeraConfig(
            r=self.settings.rank,
            d_initial=self.settings.d_initial,
            vera_dropout=self.settings.dropout,
            projection_prng_key=self.seed,
            save_projection=True,
            target_modules=list(self.settings.targets),
            task_type="CAUSAL_LM",
        )

    def not_communicated(self) -> dict[str, Any]:
        """Return seed, shapes and checksum of A and B; sites compare the checksum before round 1."""
        tensors = self.file_tensors(self.names[0])
        fixed = {name: tensors[name] for name in tensors if name in self.seed_generated}
        digest = hashlib.sha256()
        for name in sorted(fixed):
            digest.update(fixed[name].contiguous().numpy().tobytes())
        shapes = {name: list(value.shape) for name, value in fixed.items()}
        return {"seed": self.seed, "shapes": shapes, "sha256": digest.hexdigest()}


def vera_projections(a: tuple[int, ...], b: tuple[int, ...], seed: int) -> dict[str, Tensor]:
    """Return VeRA's fixed A (ρ, d_in) and B (d_out, ρ) as PEFT draws them: Kaiming-uniform, A first."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in ((VERA_A, a), (VERA_B, b)):
        bound = math.sqrt(3.0) * (math.sqrt(2.0) / math.sqrt(shape[1]))
        out[name] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return out


METHOD = PeftMethod(
    summary="VeRA: vectors b and d travel; the random A and B every site makes from the run's seed.",
    source="Kopiczko et al. 2024",
    settings=VeraSettings,
    adapters=VeraAdapters,
    effective=with_lora_targets,
)
