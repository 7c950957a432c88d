# SPDX-License-Identifier: Apache-2.0
"""The influence factor that a site computes for its own update (Fed-MedLoRA+, client mode; ML-15).

It stands here and not with the rules because a learner needs it; the rule is `aggregation.influence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from medflare.core.errors import UpdateError
from medflare.core.hints import InfluenceHint


class SelfInfluence:
    """One round's factor: made before training, measured after it; without a hint there is nothing to do.

    Args:
        hint: of the rule `influence` in client mode, or None.
        loss: mean loss on the shared validation records D_v with the weights as they are.
    """

    def __init__(self, hint: InfluenceHint | None, loss: Callable[[], float]) -> None:
        self.hint, self.loss = hint, loss
        self.reference = math.nan
        if hint is not None:
            self.reference = reference_loss(hint, loss)

    def measure(self, factor: float) -> tuple[float, dict[str, float]]:
        """Return the update's factor and the metric that goes with it.

        Args:
            factor: of the client terms; returned as it is where the rule does not ask for influence.
        """
        if self.hint is None:
            return factor, {}
        loss = self.loss()
        factor = self_influence(loss, self.reference, self.hint.temperature, self.hint.clip)
        return factor, {"shared_loss": loss}


def reference_loss(hint: InfluenceHint, loss: Callable[[], float]) -> float:
    """Return ℓ_ref of a round: what the server sent, in the first round the broadcast model's loss here."""
    return loss() if hint.reference is None else hint.reference


def self_influence(loss: float, reference: float, temperature: float = 1.0, clip: float = 2.0) -> float:
    """Return exp(-(ℓ - ℓ_ref)/κ) within [e^-clip, e^clip], which multiplies the site's examples.

    Args:
        loss: ℓ_k, mean cross-entropy per output token of the site's new model on D_v (ML-4).
        reference: ℓ_ref; equal at all sites, so it cancels.
        temperature: κ.
        clip: the server refuses a factor outside (against self-promotion).

    Raises:
        UpdateError: a loss is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(reference)):
        raise UpdateError(
            f"influence: the loss on the validation notes is {loss} and was {reference} before training; "
            "expected finite numbers. Lower the learning rate, or look at the validation notes."
        )
    return math.exp(min(max((reference - loss) / temperature, -clip), clip))
