# SPDX-License-Identifier: Apache-2.0
"""The block `dp` of a job's method settings: how training is made differentially private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from medflare.core.config import Settings


class PrivacySettings(Settings):
    """Patient-level DP-SGD; a hospital's own `policy.dp` decides how much of it may run there."""

    noise_multiplier: float = Field(
        default=1.0, gt=0, le=1e4, description="noise per step, in multiples of clip_norm"
    )
    clip_norm: float = Field(
        default=1.0,
        ge=1e-6,  # far below, single precision rounds a clipped gradient up to twice its norm
        le=1e9,
        description="largest norm of one patient's gradient, summed over its records",
    )
    sample_rate: float = Field(
        default=0.05, gt=0, le=1, description="probability with which each patient is in a step"
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="at which epsilon is stated where the site's policy names none"
    )
    records_per_patient: int = Field(
        default=16, ge=1, description="most training examples of one patient in a step, drawn anew each time"
    )


def private_settings_problem(
    *, checkpointing: bool, sums: Mapping[str, str], adapter: str, adapters: Sequence[str]
) -> str | None:
    """Return why a method's other settings exclude `dp`; None where they do not.

    Args:
        checkpointing: whether gradients are checkpointed.
        sums: settings by which updates carry sums of patients' data, and what would send none.
        adapter: the adapter's method; adapters: those whose gradients of single examples can be had.
    """
    if checkpointing:
        return (
            "dp: gradient checkpointing runs every layer twice, and per-example gradients would be counted "
            "twice: set optimiser.gradient_checkpointing to false"
        )
    if adapter not in adapters:
        return (
            f"dp: an adapter of method '{adapter}' has no gradients of single examples; those of "
            f"{', '.join(adapters)} have"
        )
    for setting, instead in sums.items():
        return f"dp: {setting} sends sums that have no noise; take {instead}"
    return None
