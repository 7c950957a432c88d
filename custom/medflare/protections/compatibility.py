# SPDX-License-Identifier: Apache-2.0
"""Check that a protection leaves a rule what it must read, when a job is made and when a run starts."""

from __future__ import annotations

from collections.abc import Iterator

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import ProbesLosses
from medflare.protections.base import Protection


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
    else:
        prober = rule.capability(ProbesLosses)
        if prober is not None and not prober.probes_result:
            yield (
                f"rule '{name}' has sites measure losses of a state that only the server knows, and under "
                f"{protection.words} a site measures the state alone that it is sent to train on next. "
                "Set rule_settings.snapshot to 'end'."
            )
