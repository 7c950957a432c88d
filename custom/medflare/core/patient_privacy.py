# SPDX-License-Identifier: Apache-2.0
"""Report of a learner that trains under differential privacy, for the privacy account."""

from __future__ import annotations

import math
from dataclasses import dataclass

from medflare.core.plan import RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """So many steps of a Gaussian mechanism on a Poisson sample of a site's patients.

    Attributes:
        noise: standard deviation of the noise, in multiples of the norm to which a patient is clipped.
        rate: probability with which each patient is in a step.
        steps: how many.
    """

    noise: float
    rate: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientPrivacy:
    """Differentially private training of one site's patients.

    Attributes:
        patients: who is trained on, one entry each; a record that names no patient has an entry of its own.
        unnamed: how many of these are records that name none.
        noise, rate: as in `Mechanism`.
        passes: mean visits of a patient in a round whose plan names neither steps nor a fraction.
        delta: of the job, for a site whose policy names none.
    """

    patients: tuple[str, ...]
    unnamed: int
    noise: float
    rate: float
    passes: int
    delta: float

    def steps(self, plan: RoundPlan) -> int:
        """Return the steps of a round: its plan's, or as many as visit that share of the patients in mean."""
        if plan.steps is not None:
            return plan.steps
        share = self.passes if plan.fraction is None else plan.fraction
        return max(1, math.ceil(share / self.rate - 1e-9))

    def mechanism(self, plan: RoundPlan) -> Mechanism:
        """Return what a round does to the patients."""
        return Mechanism(noise=self.noise, rate=self.rate, steps=self.steps(plan))
