# SPDX-License-Identifier: Apache-2.0
"""A site's patients as the patient adapter sees them: q_p from their profiles and the agreed mixture (3.1,
3.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.tensors import State
from medflare.learners.fedtar.expectation import fitted, moments_of, statistics_of
from medflare.learners.fedtar.mixture import MIXTURE, Mixture, MixtureSettings, fixed_grid
from medflare.learners.fedtar.profile import Profiles


class People:
    """Profiles, and q_p once a mixture is there; `temporal_loop.Profiled` is this class's first half.

    Args:
        everybody: profiles of all patients of the site.
        trained_on: the patients whose profiles may enter sums: those of the training split.
        seed: of the run, for a mixture that needs no other site.
    """

    def __init__(
        self, everybody: Profiles, trained_on: Iterable[str], settings: MixtureSettings, seed: int
    ) -> None:
        self.profiles, self.settings, self.seed = everybody, settings, seed
        self._places = {patient: row for row, patient in enumerate(everybody.patients)}
        self.values = everybody.values[[self._places[patient] for patient in sorted(set(trained_on))]]
        self.mixture: Mixture | None = None
        self._assigned: Tensor | None = None
        entries = everybody.values.shape[1]
        if settings.source == "global_fixed":
            self.take_mixture(fixed_grid(settings, entries, seed))
        elif settings.source == "per_client":
            self.take_mixture(self._own())

    def _own(self) -> Mixture:
        """EM over this site's patients alone; nothing of it leaves."""
        found = fitted([self.values], self.settings, self.seed).mixture
        assert found is not None
        return found

    # ---- before round 1 ----------------------------------------------------------------------------------

    def profile_sums(self) -> State:
        """What a site sends before the first iteration."""
        return moments_of(self.values)

    def mixture_sums(self, mixture: Mixture) -> State:
        """What a site sends in an iteration."""
        self._fits(mixture)
        return statistics_of(mixture, self.values)

    def take_mixture(self, mixture: Mixture) -> None:
        """Computes q_p of all patients with it."""
        self._fits(mixture)
        self.mixture, self._assigned = mixture, mixture.assign(self.profiles.values).float()

    def _fits(self, mixture: Mixture) -> None:
        found, expected = (
            tuple(mixture.means.shape),
            (self.settings.components, self.profiles.values.shape[1]),
        )
        if found != expected:
            raise UpdateError(
                f"the mixture has {found[0]} components over {found[1]} entries of a profile; this site "
                f"expects {expected[0]} over {expected[1]}. All sites need the same settings of profile and "
                "mixture."
            )

    # ---- in a round --------------------------------------------------------------------------------------

    def assigned(self, patients: Sequence[str]) -> Tensor:
        """q_p of the patients of a batch: (B, K) fp32, one row for each, in their order.

        UpdateError before there is a mixture; KeyError for a patient the site does not have.
        """
        if self._assigned is None:
            raise UpdateError("no mixture of profiles yet: the sites agree on one before the first round.")
        return self._assigned[[self._places[patient] for patient in patients]]

    def state(self) -> State:
        """The mixture, for a restart; nothing where there is none yet."""
        return self.mixture.state() if self.mixture is not None else {}

    def restore(self, tensors: State) -> None:
        """Puts back what `state` returned; other tensors are left alone."""
        own = {name: value for name, value in tensors.items() if name.startswith(MIXTURE)}
        if own:
            self.take_mixture(Mixture.of(own))
