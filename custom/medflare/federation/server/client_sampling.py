# SPDX-License-Identifier: Apache-2.0
"""Rounds of a rule that samples its clients, and the second exchange of one that wants losses."""

from __future__ import annotations

import math
from collections.abc import Mapping

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import Probe, SamplesClients
from medflare.core.metrics import as_metric
from medflare.protocol.outcome import Outcome

NOT_SAMPLED = "not drawn by the rule for this round"


def sample_clients(
    rule: AggregationRule,
    number: int,
    seed: int,
    examples: Mapping[str, int],
    eligible: list[str],
    min_clients: int,
) -> tuple[list[str], dict[str, str]]:
    """Return (sites that train, reason for each eligible one that does not); all unless the rule samples.

    Args:
        number: of the exchange of updates.
        seed: of the run.
        examples: training examples of every site of the run.
        min_clients: so many updates hide each other where they are summed unseen.
    """
    sampler = rule.capability(SamplesClients)
    if sampler is None or not eligible:
        return eligible, {}
    sampled = sampler.sample_clients(number, seed, examples, eligible, min_clients)
    return sampled, {site: NOT_SAMPLED for site in eligible if site not in sampled}


def probe_sites(probe: Probe, eligible: list[str]) -> list[str]:
    """Return the sites of a probe that were not lost while they trained."""
    return [site for site in probe.sites if site in eligible]


def probe_losses(outcome: Outcome) -> dict[str, float]:
    """Return site -> the loss it measured of a probe, NaN where it sent no number."""
    measured = {site: facts["metrics"].get("loss", math.nan) for site, facts in outcome.facts.items()}
    return {site: as_metric(value) for site, value in sorted(measured.items())}
