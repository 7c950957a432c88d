# SPDX-License-Identifier: Apache-2.0
"""Checks that controller, rule and method of a job have the same visits and mixture of profiles."""

from __future__ import annotations

from collections.abc import Iterator

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import round_hints
from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.federation.server.mixture import check_mixture
from medflare.federation.server.schedule import check_visits
from medflare.federation.server.settings import RoundsSettings, TemporalSettings
from medflare.learners.fedtar.mixture import MixtureSettings


def visit_problems(rounds: RoundsSettings, rule: AggregationRule, method: Settings) -> Iterator[str]:
    """Yield why controller, rule and method of a job cannot go through visits together.

    method: the method's own settings, with preset and variant applied.
    """
    if isinstance(rounds, TemporalSettings):
        yield from _same_visits(rounds, rule, method)
    elif (hint := round_hints(rule).visit) is not None and hint.visits > 1:
        yield (
            "the rule takes one visit an exchange, and in the workflow 'rounds' a round is one exchange. Use "
            "workflow 'temporal', or rule 'weighted_mean'."
        )
    yield from _same_mixture(getattr(rounds, "mixture", None), method)


def _same_visits(rounds: TemporalSettings, rule: AggregationRule, method: Settings) -> Iterator[str]:
    for check in (
        lambda: check_visits(rule, rounds.visits),
        lambda: check_mixture(rounds.mixture, rounds.protection),
    ):
        try:
            check()
        except ConfigError as error:
            yield str(error)
    own = getattr(method, "visits", rounds.visits)
    if own != rounds.visits:
        yield (
            f"settings.visits is {own}, and the controller's `visits` is {rounds.visits}. Set both to the "
            "number of visits a round goes through."
        )


def _same_mixture(asked: MixtureSettings | None, method: Settings) -> Iterator[str]:
    """Yield why the mixture that the controller has fitted is not the one that the method uses."""
    wanted: MixtureSettings | None = getattr(method, "mixture", None)
    if wanted is None:
        return
    if not getattr(method, "personal", False):
        if asked is not None:
            yield (
                "the controller's `mixture` is to be fitted, and with settings.personal false nobody asks "
                "for it. Set mixture to null."
            )
    elif asked is None and wanted.source == "federated":
        yield (
            "the method makes factors for each patient from a mixture that sites agree on before round 1, "
            "and no `mixture` stands in the controller's settings. Use workflow 'temporal' with the same "
            "`mixture` there, or settings.personal false, or another settings.mixture.source."
        )
    elif asked is not None and asked != wanted:
        yield (
            f"settings.mixture is {wanted.model_dump()}, and the controller's `mixture` is "
            f"{asked.model_dump()}. Give both the same."
        )
