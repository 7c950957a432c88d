# SPDX-License-Identifier: Apache-2.0
"""A site's side of the exchanges in which sites agree on a mixture of profiles: sums and nothing else (3.7).

The mixture itself travels in the hints of plans, whose numbers nothing rounds.
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

ASKED, MIXTURE = "profiles", "mixture"
"""Hints: which sums are asked for, one of STAGES; the mixture as it is."""
STAGES = MOMENTS, STATISTICS = ("moments", "statistics")
PARTS = ("weights", "means", "variances")


def profile_specs(learner: Learner, components: int) -> dict[str, SharedSpec]:
    """Stage -> the sums a site will send in it; ConfigError where the method knows no profiles."""
    entries = _profiled(learner).profile_sums()[FIRST].shape[0]
    return {MOMENTS: moments_spec(entries), STATISTICS: statistics_spec(components, entries)}


def profile_sums(learner: Learner, hints: Mapping[str, Any]) -> tuple[State, int]:
    """(the sums that the hints ask for, how many patients they are of)."""
    site, stage = _profiled(learner), hints[ASKED]
    if stage not in STAGES:
        raise UpdateError(f"sums '{stage}' of the profiles were asked for; expected one of {STAGES}.")
    if stage == MOMENTS:
        sums = site.profile_sums()
        return sums, round(float(sums[PATIENTS]))
    sums = site.mixture_sums(mixture_in(hints))
    return sums, round(float(sums[N].sum()))


def take_mixture(learner: Learner, hints: Mapping[str, Any]) -> None:
    """Gives a learner the mixture that came along, if one did."""
    if MIXTURE in hints:
        _profiled(learner).take_mixture(mixture_in(hints))


def mixture_hint(mixture: Mixture) -> dict[str, Any]:
    """A mixture in JSON types, to the last bit."""
    return {MIXTURE: {part: getattr(mixture, part).tolist() for part in PARTS}}


def mixture_in(hints: Mapping[str, Any]) -> Mixture:
    """The inverse of `mixture_hint`; UpdateError where it is none."""
    tensors = {part: torch.tensor(hints[MIXTURE][part], dtype=torch.float64) for part in PARTS}
    return Mixture.of({f"{MIXTURE}.{part}": value for part, value in tensors.items()})


def _profiled(learner: Learner) -> Profiled:
    if not isinstance(learner, Profiled):
        raise ConfigError(
            "the job asks for a mixture of patients' profiles (controller setting `mixture`), and this "
            "method makes no profiles. Leave the setting out."
        )
    return learner
