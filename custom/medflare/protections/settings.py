# SPDX-License-Identifier: Apache-2.0
"""`protection_settings` of the rounds controller."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from medflare.core.config import Settings


class SumPrivacySettings(Settings):
    """Distributed differential privacy of masked sums: what a sum shows of one site's update."""

    clip_norm: float = Field(default=1.0, gt=0, description="norm to which a site shortens its update")
    noise_multiplier: float = Field(
        default=1.0, gt=0, description="deviation of a sum's noise, in multiples of clip_norm"
    )
    colluding: int = Field(
        default=1,
        ge=0,
        description="sites that may tell the server their noise; the others still carry it all",
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="at which epsilon is stated")


class ProtectionSettings(Settings):
    """Settings of a job's protection; a site's own policy may ask for more."""

    renamed: ClassVar[dict[str, str]] = {"lost_rounds": "max_lost_rounds"}

    threshold: int | None = Field(default=None, ge=2)
    """Sites that must work together to open a masked sum; default: more than half of those selected."""
    max_lost_rounds: int = Field(default=1, ge=0)
    """Rounds in a row that may be lost to a masked sum that cannot be opened, before the run ends."""
    bits: Literal[16, 32] = 32
    """Of a masked value. 16 takes the bytes of bf16 and needs a `bound` close above what updates reach."""
    bound: float = Field(default=16.0, gt=0)
    """Largest absolute value of an update's tensors; a site whose update exceeds it is left out."""
    dp: SumPrivacySettings | None = None
    """Masking: noise in every sum of updates, a part from each site; None for none."""
