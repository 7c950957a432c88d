# SPDX-License-Identifier: Apache-2.0
"""A site's side of the exchanges that fit a mixture to the patients' profiles (FedTAR): it sends sums only.

The mixture itself travels in the hints of plans, as JSON numbers, which nothing rounds.
"""

from __future__ import annotations

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.hints import MOMENTS, STAGES, STATISTICS, RoundHints
from medflare.core.learner import Learner, PatientProfiles
from medflare.core.tensors import SharedSpec, State
from medflare.learners.fedtar.federated_em import FIRST, PATIENTS, N, moments_spec, statistics_spec
from medflare.learners.fedtar.mixture import MOST_ITERATIONS


def profile_specs(learner: Learner, components: int) -> dict[str, SharedSpec]:
    """Return, by stage, the names, shapes and dtypes of the sums that a site sends in it.

    Raises:
        ConfigError: the method computes no profiles.
    """
    entries = _profiles(learner).profile_sums()[FIRST].shape[0]
    return {MOMENTS: moments_spec(entries), STATISTICS: statistics_spec(components, entries)}


def profile_sums(learner: Learner, hints: RoundHints, number: int) -> tuple[State, int]:
    """Return (the sums that the hints request, the number of patients they are of).

    Args:
        number: of the exchange; they are counted up to -2, and a job repeats none.

    Raises:
        UpdateError: no such stage, statistics without the mixture they are of, or more exchanges than EM has
            iterations.
        ConfigError: the method computes no profiles.
    """
    site, stage = _profiles(learner), hints.profiles
    if stage not in STAGES:
        raise UpdateError(f"sums '{stage}' of the profiles were asked for; expected one of {STAGES}.")
    if not -(MOST_ITERATIONS + 2) <= number < -1:
        raise UpdateError(
            f"sums of profiles were asked for in exchange {number}; expected {-(MOST_ITERATIONS + 2)} to -2, "
            f"for {MOST_ITERATIONS} iterations at most: sums of ever more mixtures single out a patient."
        )
    if stage == MOMENTS:
        sums = site.profile_sums()
        return sums, round(float(sums[PATIENTS]))
    if hints.mixture is None:
        raise UpdateError("statistics of the profiles were asked for without the mixture they are of.")
    sums = site.mixture_sums(hints.mixture)
    return sums, round(float(sums[N].sum()))


def take_mixture(learner: Learner, hints: RoundHints) -> None:
    """Give the learner the mixture that the hints hold, if they hold one."""
    if hints.mixture is not None:
        _profiles(learner).take_mixture(hints.mixture)


def _profiles(learner: Learner) -> PatientProfiles:
    if learner.patient_profiles is None:
        raise ConfigError(
            "the job asks for a mixture of patients' profiles (controller setting `mixture`), and this "
            "method makes no profiles, or settings.personal is false. Leave the setting out."
        )
    return learner.patient_profiles
