# SPDX-License-Identifier: Apache-2.0
"""Evaluations under a protection: nothing of one site leaves, and sums where the seal has some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.summed_metrics import TEST, VALIDATION, adapter_group, add_metrics, zeros
from medflare.core.tensors import SharedSpec, State
from medflare.egress.permitted_facts import COUNTED, rounded
from medflare.egress.policy import Policy

EXCHANGES = {"evaluate": VALIDATION, "finish": TEST}
"""Task that measures -> the exchange of sums in which its numbers may leave."""
NUMBERS: dict[str, tuple[str, Any]] = {"evaluate": ("metrics", {}), "finish": ("evaluations", [])}
"""Task that measures -> the fact that holds its numbers, and that fact without any."""


def without_numbers(task: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a measurement without what was measured."""
    name, nothing = NUMBERS[task]
    return {key: value for key, value in facts.items() if key != COUNTED} | {name: type(nothing)()}


def summed_evaluation(
    policy: Policy, task: str, facts: Mapping[str, Any], spec: SharedSpec, declared: Mapping[str, int]
) -> tuple[State, int]:
    """Return (a site's part of the sums of an evaluation, how many of its metrics stay here).

    A site whose policy withholds a number, or that has too few examples for it, adds zeros, as does one that
    could not measure it: the server cannot tell these from each other.

    Args:
        task: "evaluate" or "finish", whose facts these are.
        spec: the declared sums of the exchange.
        declared: split -> examples, by which means over sites are weighted.
    """
    sums, withheld = zeros(spec), 0
    if task == "evaluate":
        parts = [(VALIDATION, facts["metrics"], declared.get(VALIDATION, 0), facts[COUNTED])]
    else:
        parts = [
            (
                adapter_group(item["adapter"]),
                {name: estimate["value"] for name, estimate in item["metrics"].items()},
                item["studies"],
                item["studies"],
            )
            for item in facts["evaluations"]
        ]
    for group, measured, weight, counted in parts:
        kept = policy.metrics(measured) if policy.is_enough(counted) else {}
        values = {name: rounded(value) for name, value in kept.items()}
        undeclared = add_metrics(sums, group, values, weight)
        withheld += len(measured) - len(kept) + len(undeclared)
    return sums, withheld
