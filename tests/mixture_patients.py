# SPDX-License-Identifier: Apache-2.0
"""Patients of a toy learner that takes part in the federated mixture of profiles."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from medflare.core.hints import MixtureHint
from medflare.core.tensors import State
from medflare.learners.fedtar.federated_em import em_statistics, profile_moments
from medflare.learners.fedtar.mixture import Mixture


class MixturePatients:
    """The part of a learner that `patient_profiles` stands for; `values` are the profiles, one row each."""

    values: Tensor
    mixture: Mixture | None = None

    @property
    def patient_profiles(self) -> Any:
        return self

    def profile_sums(self) -> State:
        return profile_moments(self.values)

    def mixture_sums(self, mixture: MixtureHint) -> State:
        return em_statistics(Mixture.from_hint(mixture), self.values)

    def take_mixture(self, mixture: MixtureHint) -> None:
        self.mixture = Mixture.from_hint(mixture)
