# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA+'s weights in one formula; the rule finds them while updates come in."""

from __future__ import annotations

import math
from collections.abc import Sequence


def influence_weights(
    losses: Sequence[float], examples: Sequence[int], temperature: float = 1.0, use_data_size: bool = True
) -> list[float]:
    """Return C_k = n_k I_k / Σ n_j I_j with I_k ∝ exp(-ℓ_k/κ); I_k alone where `use_data_size` is false.

    The smallest loss is subtracted first, so no exponent is positive (ML-3).
    """
    best = min(losses)
    shares = [math.exp((best - loss) / temperature) for loss in losses]
    if use_data_size:
        shares = [share * n for share, n in zip(shares, examples, strict=True)]
    return [share / sum(shares) for share in shares]
