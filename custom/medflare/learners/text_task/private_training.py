# SPDX-License-Identifier: Apache-2.0
"""One round of differentially private training of a text model: its rates and loss; the step is
`learners.private_round`, of which there is one for all methods."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from medflare.core.secure_random import SecureRandom
from medflare.differential_privacy.private_step import PrivateTraining
from medflare.learners.client_terms import Watch, no_watch
from medflare.learners.optim import CosinePart, adamw, scale_rates
from medflare.learners.private_round import train_private_round
from medflare.learners.text_task.settings import TextTaskSettings
from medflare.models.text_model import Sequenced, TextModel


def train_round_privately(
    model: TextModel,
    rows: Sequence[Sequenced],
    patients: Sequence[Sequence[int]],
    settings: TextTaskSettings,
    steps: int,
    part: CosinePart,
    watch: Watch = no_watch,
    random: SecureRandom | None = None,
) -> dict[str, float]:
    """Train whatever adapters are set to learn, with a new AdamW.

    Args:
        patients: positions in `rows` of each patient's.
        part: what the round has of the cosine.
        random: of a test, for sampling and noise.

    Returns:
        `steps`. No loss is computed: it would be a number on patients without noise.

    Raises:
        ConfigError: the adapter cannot be trained privately.
        UpdateError: a gradient or a trained value is not finite.
    """
    assert settings.dp is not None
    chosen, module = settings.optimiser, model.adapters.peft
    learned = [p for p in module.parameters() if p.requires_grad]
    optimiser = adamw([(learned, chosen.lr)], chosen.weight_decay)
    watch(optimiser, steps)

    def loss(positions: Sequence[int]) -> Tensor:
        return model.loss([rows[i] for i in positions], alone=True)[0]

    training = PrivateTraining(
        module=module,
        patients=patients,
        loss=loss,
        chunk=chosen.step_size,
        optimiser=optimiser,
        begin_step=lambda step, of: scale_rates(optimiser, part.factor(step / of)),
    )
    rate = f"settings.optimiser.lr, which is {chosen.lr:g}"
    return train_private_round(training, settings.dp, steps, rate, random)
