# SPDX-License-Identifier: Apache-2.0
"""Rounds of a rule that draws who trains, and the second exchange of one that wants losses (1.9)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import Probe, SamplesClients
from medflare.federation.outcome import Outcome
from medflare.federation.server.run_recorder import as_float
from medflare.secure_aggregation.round_parameters import Limits

HIDING = Limits().min_sites
NOT_DRAWN = "not drawn by the rule for this round"


def who_trains(
    rule: AggregationRule,
    number: int,
    seed: int,
    examples: Mapping[str, int],
    asked: list[str],
    sealed: bool,
) -> tuple[list[str], dict[str, str]]:
    """(sites that train, reason for each of `asked` that does not); all of them unless the rule draws.

    examples: training examples of every site of the run; sealed: whether updates are summed unseen, which
    sites agree to among `HIDING` or more.
    """
    sampler = rule.capability(SamplesClients)
    if sampler is None or not asked:
        return asked, {}
    drawn = sampler.sample_clients(number, seed, examples, asked, HIDING if sealed else 1)
    return drawn, {site: NOT_DRAWN for site in asked if site not in drawn}


def present(probe: Probe, asked: list[str]) -> list[str]:
    """The sites of a probe that were not lost while they trained."""
    return [site for site in probe.sites if site in asked]


def losses(outcome: Outcome) -> dict[str, float]:
    """What the sites measured of a probe."""
    told = {site: facts["metrics"].get("loss", math.nan) for site, facts in outcome.facts.items()}
    return {site: as_float(value) for site, value in sorted(told.items())}
