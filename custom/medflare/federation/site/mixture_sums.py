# SPDX-License-Identifier: Apache-2.0
"""A site's side of the exchanges that fit a mixture to the patients' profiles (FedTAR): it sends sums only.

The mixture itself travels in the hints of plans, as JSON numbers, which nothing rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.learner import Learner
from medflare.core.tensors import SharedSpec, State
from medflare.in_process.temporal_loop import Profiled
from medflare.learners.fedtar.expectation import FIRST, PATIENTS, N, moments_spec, statistics_spec
from medflare.learners.fedtar.mixture import Mixture

REQUESTED, MIXTURE = "profiles", "mixture"
"""Hints: which sums are requested, one of STAGES; the present mixture."""
STAGES = MOMENTS, STATISTICS = ("moments", "statistics")
PARTS = ("weights", "means", "variances")


def profile_specs(learner: Learner, components: int) -> dict[str, SharedSpec]:
    """Return, by stage, the names, shapes and dtypes of the sums that a site sends in it.

    Raises:
        ConfigError: the method computes no profiles.
    """
    entries = _profiled(learner).profile_sums()[FIRST].shape[0]
    return {MOMENTS: moments_spec(entries), STATISTICS: statistics_spec(components, entries)}


def profile_sums(learner: Learner, hints: Mapping[str, Any]) -> tuple[State, int]:
    """Return (the sums that the hints request, the number of patients they are of).

    Raises:
        UpdateError: no such stage.
        ConfigError: the method computes no profiles.
    """
    site, stage = _profiled(learner), hints[REQUESTED]
    if stage not in STAGES:
        raise UpdateError(f"sums '{stage}' of the profiles were asked for; expected one of {STAGES}.")
    if stage == MOMENTS:
        sums = site.profile_sums()
        return sums, round(float(sums[PATIENTS]))
    sums = site.mixture_sums(mixture_in(hints))
    return sums, round(float(sums[N].sum()))


def take_mixture(learner: Learner, hints: Mapping[str, Any]) -> None:
    """Give the learner the mixture that the hints hold, if they hold one."""
    if MIXTURE in hints:
        _profiled(learner).take_mixture(mixture_in(hints))


def mixture_hint(mixture: Mixture) -> dict[str, Any]:
    """Return the hint that holds a mixture, to the last bit."""
    return {MIXTURE: {part: getattr(mixture, part).tolist() for part in PARTS}}


def mixture_in(hints: Mapping[str, Any]) -> Mixture:
    """Return the mixture in a hint; UpdateError where it is none."""
    tensors = {part: torch.tensor(hints[MIXTURE][part], dtype=torch.float64) for part in PARTS}
    return Mixture.of({f"{MIXTURE}.{part}": value for part, value in tensors.items()})


def _profiled(learner: Learner) -> Profiled:
    if not isinstance(learner, Profiled):
        raise ConfigError(
            "the job asks for a mixture of patients' profiles (controller setting `mixture`), and this "
            "method makes no profiles. Leave the setting out."
        )
    return learner
