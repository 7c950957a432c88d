# SPDX-License-Identifier: Apache-2.0
"""Federated EM before round 1: exchanges of sums alone, by the same door and protection (3.7; TAR-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from medflare.core.errors import RunError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.tensor_names import SUM_PREFIX, split_by_prefix
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.federation.messages import Reply
from medflare.federation.protections.base import ServerProtection
from medflare.federation.site.mixture_sums import MOMENTS, STAGES, STATISTICS, mixture_hint
from medflare.learners.fedtar.expectation import FIRST, FederatedMixture, added
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.wire.compression import decompress
from medflare.wire.spec_codec import spec_from_json

Gather = Callable[[int, SharedSpec, RoundHints], State]
"""(number of the exchange, sums expected, hints) -> their totals over the sites."""


def agree_on_mixture(
    settings: MixtureSettings, specs: Mapping[str, SharedSpec], seed: int, gather: Gather
) -> FederatedMixture:
    """EM over the sites; exchanges are counted up to -2, as a canary is -1 and the first round 0.

    RunError where all sites together have too few patients.
    """
    server = FederatedMixture(settings, specs[MOMENTS][FIRST][0][0], seed)
    number = -(settings.iterations + 2)
    mixture = server.begin(gather(number, specs[MOMENTS], RoundHints(profiles=MOMENTS)))
    while not server.done:
        number += 1
        hints = RoundHints(profiles=STATISTICS) | mixture_hint(mixture)
        mixture = server.step(gather(number, specs[STATISTICS], hints))
    return server


class Gathered:
    """The replies of one such exchange: added up here, or in a sum that nobody can look into."""

    def __init__(self, spec: SharedSpec, protection: ServerProtection) -> None:
        self.spec, self.protection = spec, protection
        self._told: dict[str, State] = {}

    def accept(self, site: str, reply: Reply) -> str | None:
        """Takes a reply; the reason where it cannot be used."""
        try:
            if self.protection.sealed:
                self.protection.add_sealed(site, reply.facts, reply.tensors)
                return None
            others, sums = split_by_prefix(decompress(reply.tensors), SUM_PREFIX)
            check_state(others, {}, "sums of profiles")
            check_state(sums, self.spec, "sums of profiles")
        except UpdateError as error:
            return f"sums of profiles: {error}"
        self._told[site] = sums
        return None

    def totals(self) -> State:
        """Added in order of the sites' names, which makes a run repeatable."""
        return added([self._told[site] for site in sorted(self._told)])


def agreed_specs(facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> dict[str, SharedSpec]:
    """Stage -> the sums all sites declared; RunError that names who declared others."""
    first = next(site for site in sites if site in facts)
    other = [s for s in sites if s in facts and facts[s].get("profiles") != facts[first].get("profiles")]
    found = facts[first].get("profiles")
    if other or found is None:
        raise RunError(
            f"the profiles of {', '.join(other) or first} have other entries than those of {first}, or none. "
            "Give all sites the same settings of profile and mixture, and the same version of medflare."
        )
    return {stage: spec_from_json(found[stage]) for stage in STAGES}
