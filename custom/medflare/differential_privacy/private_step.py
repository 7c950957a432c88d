# SPDX-License-Identifier: Apache-2.0
"""One round of differentially private training, whatever the method: the only place where its noise is made.

A learner declares what it trains, the rows of each patient, and a loss that is a sum over rows. Sampling,
clipping and noise are here, once, and their randomness comes from the operating system: not from the run's
seed, nor from anything that the server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from medflare.core.secure_random import SecureRandom
from medflare.differential_privacy.patient_gradients import ClippedSum, PatientGradients, SummedLoss, hooked
from medflare.differential_privacy.settings import PrivacySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateTraining:
    """Model and settings that a learner trains privately.

    Attributes:
        module: the network; its parameters that are set to learn are trained, and no others.
        patients: the rows of each patient; who has none counts too.
        loss: of rows, the sum of a loss of each, without anything that couples them.
        chunk: rows of one forward pass.
        optimiser: over the parameters that learn; begin_step: called with (step, steps) before each, for
            rates.
    """

    module: nn.Module
    patients: Sequence[Sequence[int]]
    loss: SummedLoss
    chunk: int
    optimiser: torch.optim.Optimizer
    begin_step: Callable[[int, int], None] = lambda step, steps: None


@dataclass(frozen=True, slots=True)
class PrivateRound:
    """Facts of a round, which say something of patients and stay at the site.

    Attributes:
        steps: of the optimiser. sampled: patients over all steps. clipped: of them, those that were clipped.
    """

    steps: int
    sampled: int
    clipped: int


def train_privately(
    training: PrivateTraining, settings: PrivacySettings, steps: int, random: SecureRandom | None = None
) -> PrivateRound:
    """Take `steps` steps of DP-SGD.

    Each takes a Poisson sample of the patients, sums their clipped gradients, adds normal noise of
    noise_multiplier · clip_norm to every number, and divides by the expected number of patients, so that the
    divisor tells nothing of who was there. A step without any patient is one of noise alone.

    Args:
        random: of a test; None draws from the operating system.

    Raises:
        ConfigError: the network cannot be hooked.
        UpdateError: a gradient is not finite.
    """
    source, sampled, clipped = random or SecureRandom(), 0, 0
    expected = settings.sample_rate * len(training.patients)
    with hooked(training.module, training.loss, training.chunk) as gradients:
        for step in range(steps):
            training.begin_step(step, steps)
            chosen = sample_patients(training.patients, settings, source)
            summed = gradients.clipped_sum(chosen, settings.clip_norm)
            training.optimiser.zero_grad(set_to_none=True)
            set_noisy_gradients(gradients, summed, settings, expected, source)
            training.optimiser.step()
            sampled, clipped = sampled + summed.patients, clipped + summed.clipped
    return PrivateRound(steps, sampled, clipped)


def sample_patients(
    patients: Sequence[Sequence[int]], settings: PrivacySettings, random: SecureRandom
) -> list[list[int]]:
    """Return the rows of each patient in a Poisson sample, at most `records_per_patient` of each."""
    chosen = []
    for index in random.happens(settings.sample_rate, len(patients)).nonzero()[0].tolist():
        rows = list(patients[index])
        if not rows:
            continue  # counted and sampled like any other, with a gradient of zeros
        for place in range(min(settings.records_per_patient, len(rows) - 1)):  # Fisher and Yates's shuffle
            other = place + int(random.below(len(rows) - place, 1)[0])
            rows[place], rows[other] = rows[other], rows[place]
        chosen.append(rows[: settings.records_per_patient])
    return chosen


def set_noisy_gradients(
    gradients: PatientGradients,
    summed: ClippedSum,
    settings: PrivacySettings,
    expected: float,
    random: SecureRandom,
) -> None:
    """Give every parameter that learns the sum with noise, divided by the expected number of patients."""
    deviation = settings.noise_multiplier * settings.clip_norm
    for parameter, gradient in zip(gradients.parameters, summed.gradients, strict=True):
        noise = torch.from_numpy(random.gaussian(gradient.numel())).view(gradient.shape)
        # added in float64, so that rounding to the parameter's dtype comes after the noise
        noisy = (gradient.double().cpu() + deviation * noise) / expected
        parameter.grad = noisy.to(parameter.device, parameter.dtype)
