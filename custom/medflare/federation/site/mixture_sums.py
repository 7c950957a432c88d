# SPDX-License-Identifier: Apache-2.0
"""A site's side of the exchanges that fit a mixture to the patients' profiles (FedTAR): it sends sums only.

The mixture itself travels in the hints of plans, as JSON numbers, which nothing rounds.
"""

from __future__ import annotations

import torch

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.hints import MixtureHint, RoundHints
from medflare.core.learner import Learner
from medflare.core.tensors import SharedSpec, State
from medflare.in_process.temporal_loop import Profiled
from medflare.learners.fedtar.federated_em import FIRST, PATIENTS, N, moments_spec, statistics_spec
from medflare.learners.fedtar.mixture import Mixture

STAGES = MOMENTS, STATISTICS = ("moments", "statistics")
"""What the hint `profiles` can ask for."""


def profile_specs(learner: Learner, components: int) -> dict[str, SharedSpec]:
    """Return, by stage, the names, shapes and dtypes of the sums that a site sends in it.

    Raises:
        ConfigError: the method computes no profiles.
    """
    entries = _profiled(learner).profile_sums()[FIRST].shape[0]
    return {MOMENTS: moments_spec(entries), STATISTICS: statistics_spec(components, entries)}


def profile_sums(learner: Learner, hints: RoundHints) -> tuple[State, int]:
    """Return (the sums that the hints request, the number of patients they are of).

    Raises:
        UpdateError: no such stage, or statistics without the mixture they are of.
        ConfigError: the method computes no profiles.
    """
    site, stage = _profiled(learner), hints.profiles
    if stage not in STAGES:
        raise UpdateError(f"sums '{stage}' of the profiles were asked for; expected one of {STAGES}.")
    if stage == MOMENTS:
        sums = site.profile_sums()
        return sums, round(float(sums[PATIENTS]))
    if hints.mixture is None:
        raise UpdateError("statistics of the profiles were asked for without the mixture they are of.")
    sums = site.mixture_sums(mixture_in(hints.mixture))
    return sums, round(float(sums[N].sum()))


def take_mixture(learner: Learner, hints: RoundHints) -> None:
    """Give the learner the mixture that the hints hold, if they hold one."""
    if hints.mixture is not None:
        _profiled(learner).take_mixture(mixture_in(hints.mixture))


def mixture_hint(mixture: Mixture) -> RoundHints:
    """Return the hint that carries a mixture to the last bit."""
    hint = MixtureHint(
        weights=mixture.weights.tolist(),
        means=mixture.means.tolist(),
        variances=mixture.variances.tolist(),
    )
    return RoundHints(mixture=hint)


def mixture_in(hint: MixtureHint) -> Mixture:
    """Return the mixture that `mixture_hint` was given; UpdateError where it is none."""
    tensors = {part: torch.tensor(values, dtype=torch.float64) for part, values in hint}
    return Mixture.of({f"mixture.{part}": value for part, value in tensors.items()})


def _profiled(learner: Learner) -> Profiled:
    if not isinstance(learner, Profiled):
        raise ConfigError(
            "the job asks for a mixture of patients' profiles (controller setting `mixture`), and this "
            "method makes no profiles. Leave the setting out."
        )
    return learner
