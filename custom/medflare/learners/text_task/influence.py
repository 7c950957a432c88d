# SPDX-License-Identifier: Apache-2.0
"""The influence factor that a site computes for its own update (ML-15).

It stands here and not with the rules because a learner needs it; the rule is `aggregation.influence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from medflare.core.errors import UpdateError
from medflare.core.hints import InfluenceHint


def reference_loss(hint: InfluenceHint, own: Callable[[], float]) -> float:
    """ℓ_ref of a round: what the server says, in the first round the broadcast model's loss here."""
    return own() if hint.reference is None else hint.reference


def self_influence(loss: float, reference: float, temperature: float = 1.0, clip: float = 2.0) -> float:
    """exp(-(ℓ - ℓ_ref)/κ) within [e^-clip, e^clip]: what multiplies this site's examples as its weight.

    Args:
        loss: ℓ_k, mean cross-entropy per output token of the site's new model on D_v (ML-4).
        reference: ℓ_ref (`reference_loss`); equal at all sites, so it cancels.
        temperature: κ.
        clip: the server refuses a factor outside (against self-promotion).

    Raises UpdateError if a loss is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(reference)):
        raise UpdateError(
            f"influence: the loss on the validation notes is {loss} and was {reference} before training; "
            "expected finite numbers. Lower the learning rate, or look at the validation notes."
        )
    return math.exp(min(max((reference - loss) / temperature, -clip), clip))
