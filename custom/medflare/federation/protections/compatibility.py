# SPDX-License-Identifier: Apache-2.0
"""Which protections leave a rule what it must read; checked when a job is made and when a run starts."""

from __future__ import annotations

from collections.abc import Iterator

from medflare.aggregation.base import AggregationRule
from medflare.federation.protections.base import Protection


def unreadable(name: str, rule: AggregationRule, protection: Protection) -> Iterator[str]:
    """Yield what the rule would have to read and the server cannot, with what to use instead.

    Args:
        name: of the rule, as the job has it.
    """
    if protection.server_reads == "updates":
        return
    if rule.facts.needs == "individual":
        instead = rule.facts.instead or "rule 'weighted_mean'"
        yield (
            f"rule '{name}' must see each update, and under {protection.words} the server sees at most "
            f"their sum. Use {instead}."
        )
    elif protection.server_reads == "nothing" and rule.facts.reads_sum:
        yield (
            f"rule '{name}' computes with the sum of the updates, which stays encrypted at the server under "
            "homomorphic encryption. Use rule 'weighted_mean', or masking in its place."
        )
