# SPDX-License-Identifier: Apache-2.0
"""One round of differentially private training: the step of `differential_privacy.private_step`, with dropout
and a check of what was learnt. The same for texts and for images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from medflare.core.errors import UpdateError
from medflare.core.patient_privacy import PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.core.secure_random import SecureRandom, secret_seed
from medflare.core.update import Update
from medflare.data.patients import named_patient
from medflare.data.samples import Samples
from medflare.differential_privacy.hookable import check_hookable
from medflare.differential_privacy.private_step import PrivateTraining, train_privately
from medflare.differential_privacy.settings import PrivacySettings
from medflare.learners.base import BaseLearner
from medflare.learners.patient_rows import PatientRows
from medflare.models.layer_placement import gpus_of


def train_private_round(
    training: PrivateTraining,
    settings: PrivacySettings,
    steps: int,
    rate: str,
    random: SecureRandom | None = None,
) -> dict[str, float]:
    """Take a round's private steps.

    Dropout draws from the operating system too. Which of its numbers a patient gets depends on who else is in
    the step; if they were known, one patient would change the gradients of others.

    Args:
        rate: the learning rate's setting and value, for an error.
        random: of a test, for sampling and noise.

    Returns:
        `steps`. No loss is computed: it would be a number on patients without noise.

    Raises:
        ConfigError: the network cannot be trained privately.
        UpdateError: a gradient or a trained value is not finite.
    """
    learned = [p for p in training.module.parameters() if p.requires_grad]
    with torch.random.fork_rng(devices=gpus_of(training.module)):
        torch.manual_seed(secret_seed())
        train_privately(training, settings, steps, random)
    if not all(bool(torch.isfinite(p).all()) for p in learned):
        raise UpdateError(
            "training left values in the adapter that are not finite; nothing of this round was kept. Lower "
            f"{rate}."
        )
    return {"steps": float(steps)}


@dataclass(frozen=True, slots=True)
class PrivateImages:
    """The training images of a site under differential privacy, by patient.

    Args:
        passes: mean visits of a patient in a round whose plan names neither steps nor a fraction.
    """

    rows: PatientRows
    settings: PrivacySettings
    passes: int

    @classmethod
    def of(
        cls, samples: Samples, rows: Sequence[int], settings: PrivacySettings, passes: int
    ) -> PrivateImages:
        """Return whose the images at the positions `rows` are."""
        owners = PatientRows()
        for row in rows:
            study = samples.studies[row]
            owners.add(named_patient(study.patient_id, study.study_id), [row])
        return cls(owners, settings, passes)

    @property
    def privacy(self) -> PatientPrivacy:
        """Facts of the training for the site's account."""
        return self.rows.privacy(self.settings, self.passes)

    def check(self, module: nn.Module) -> None:
        """Refuse a network without gradients of single examples, before anything is spent on it.

        Raises:
            ConfigError: as `check_hookable`.
        """
        check_hookable(module)

    def fit(self, learner: BaseLearner, plan: RoundPlan, training: PrivateTraining, rate: str) -> Update:
        """Train one round of `learner`; the update counts patients and says nothing else of them.

        Raises:
            ConfigError, UpdateError: as `train_private_round`.
        """
        started, steps = time.monotonic(), self.privacy.steps(plan)
        learner.terms.begin(plan)
        learner.terms.watch(training.optimiser, steps)
        metrics = train_private_round(training, self.settings, steps, rate)
        training.module.eval()
        output = learner.terms.finish()
        return Update(
            delta=learner.delta(),
            examples=len(self.rows),
            metrics=metrics | output.metrics | {"seconds": time.monotonic() - started},
            sums=output.sums,
            factor=output.factor,
        )
