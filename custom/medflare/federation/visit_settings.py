# SPDX-License-Identifier: Apache-2.0
"""Checks that controller, rule and method of a job have the same visits and mixture of profiles."""

from __future__ import annotations

from collections.abc import Iterator

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import round_hints
from medflare.core.errors import ConfigError
from medflare.core.method import MethodSettings
from medflare.federation.server.mixture import check_mixture
from medflare.federation.server.schedule import check_visits
from medflare.federation.server.settings import RoundsSettings, TemporalSettings


def visit_problems(rounds: RoundsSettings, rule: AggregationRule, method: MethodSettings) -> Iterator[str]:
    """Yield why controller, rule and method of a job cannot go through visits together.

    method: the method's own settings, with preset and variant applied.
    """
    mixture = None
    if (temporal := rounds.temporal) is not None:
        yield from _different_visits(temporal, rule, method)
        mixture = temporal.mixture
    elif (hint := round_hints(rule).visit) is not None and hint.visits > 1:
        yield (
            "the rule takes one visit an exchange, and in the workflow 'rounds' a round is one exchange. Use "
            "workflow 'temporal', or rule 'weighted_mean'."
        )
    if (problem := method.mixture_problem(mixture)) is not None:
        yield problem


def _different_visits(
    rounds: TemporalSettings, rule: AggregationRule, method: MethodSettings
) -> Iterator[str]:
    for check in (
        lambda: check_visits(rule, rounds.visits),
        lambda: check_mixture(rounds.mixture, rounds.protection),
    ):
        try:
            check()
        except ConfigError as error:
            yield str(error)
    if method.visit_count not in (None, rounds.visits):
        yield (
            f"settings.visits is {method.visit_count}, and the controller's `visits` is {rounds.visits}. Set "
            "both to the number of visits a round goes through."
        )
