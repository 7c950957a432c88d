# SPDX-License-Identifier: Apache-2.0
"""A site's patients as the patient adapter uses them: q_p from their profiles and the agreed mixture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.hints import MixtureHint
from medflare.core.tensors import State
from medflare.learners.fedtar.federated_em import em_statistics, fit_mixture, profile_moments
from medflare.learners.fedtar.mixture import MIXTURE, Mixture, MixtureSettings, fixed_grid
from medflare.learners.fedtar.patient_floors import FEWEST, LEAST_VARIANCE
from medflare.learners.fedtar.profile import Profiles


class PatientAssignments:
    """Profiles, and q_p once a mixture is there; the site's `core.learner.PatientProfiles`.

    Args:
        profiles: of all patients of the site.
        trained_on: the patients whose profiles may enter sums: those of the training split.
        seed: of the run, for a mixture that needs no other site.
        fewest: patients on whom every sum that leaves rests at least.
    """

    def __init__(
        self,
        profiles: Profiles,
        trained_on: Iterable[str],
        settings: MixtureSettings,
        seed: int,
        fewest: int = FEWEST,
    ) -> None:
        self.profiles, self.settings, self.seed, self.fewest = profiles, settings, seed, fewest
        self._places = {patient: row for row, patient in enumerate(profiles.patients)}
        self.values = profiles.values[[self._places[patient] for patient in sorted(set(trained_on))]]
        self.mixture: Mixture | None = None
        self._assigned: Tensor | None = None
        entries = profiles.values.shape[1]
        if settings.source == "global_fixed":
            self._assign(fixed_grid(settings, entries, seed))
        elif settings.source == "per_client":
            self._assign(self._local_mixture())

    def _local_mixture(self) -> Mixture:
        """Fit a mixture to this site's patients alone; nothing of it leaves."""
        mixture = fit_mixture([self.values], self.settings, self.seed).mixture
        assert mixture is not None
        return mixture

    # ---- before round 1 ----------------------------------------------------------------------------------

    def profile_sums(self) -> State:
        """Return what a site sends before the first iteration."""
        return profile_moments(self.values, self.fewest)

    def mixture_sums(self, mixture: MixtureHint) -> State:
        """Return what a site sends in an iteration."""
        current = Mixture.from_hint(mixture)
        self._check_shape(current)
        current = replace(current, variances=current.variances.clamp(min=LEAST_VARIANCE))
        return em_statistics(current, self.values, self.fewest)

    def take_mixture(self, mixture: MixtureHint) -> None:
        """Compute q_p of all patients with an agreed mixture."""
        self._assign(Mixture.from_hint(mixture))

    def _assign(self, mixture: Mixture) -> None:
        self._check_shape(mixture)
        self.mixture, self._assigned = mixture, mixture.assign(self.profiles.values).float()

    def _check_shape(self, mixture: Mixture) -> None:
        shape, expected = (
            tuple(mixture.means.shape),
            (self.settings.components, self.profiles.values.shape[1]),
        )
        if shape != expected:
            raise UpdateError(
                f"the mixture has {shape[0]} components over {shape[1]} entries of a profile; this site "
                f"expects {expected[0]} over {expected[1]}. All sites need the same settings of profile and "
                "mixture."
            )

    # ---- in a round --------------------------------------------------------------------------------------

    def assigned(self, patients: Sequence[str]) -> Tensor:
        """Return q_p of the patients of a batch: (B, K) fp32, one row for each, in their order.

        Raises:
            UpdateError: there is no mixture yet.
            KeyError: the site does not have a patient.
        """
        if self._assigned is None:
            raise UpdateError("no mixture of profiles yet: the sites agree on one before the first round.")
        return self._assigned[[self._places[patient] for patient in patients]]

    def deal_at_random(self, seed: int) -> None:
        """Give each patient the q_p of another one of the site: a control of whether it matters whose."""
        if self._assigned is None:
            raise UpdateError("no mixture of profiles yet: there is no q_p to deal.")
        order = torch.randperm(len(self._assigned), generator=torch.Generator().manual_seed(seed))
        dealt = torch.empty_like(self._assigned)
        dealt[order] = self._assigned[order.roll(1)]  # a cycle: nobody keeps the own one
        self._assigned = dealt

    def state(self) -> State:
        """Return the mixture, for a restart; nothing where there is none yet."""
        return self.mixture.state() if self.mixture is not None else {}

    def restore(self, tensors: State) -> None:
        """Put back what `state` returned; other tensors are left alone."""
        kept = {name: value for name, value in tensors.items() if name.startswith(MIXTURE)}
        if kept:
            self._assign(Mixture.of(kept))
