# SPDX-License-Identifier: Apache-2.0
"""The exchanges of updates that a round goes through: one, or one for each visit of the patients (FedTAR).

An exchange is an ordinary one, with checks, quorum and protection. What sites, suspensions and secure sums
know as a round is an exchange, counted through the run; the record has a round for every T of them (TAR-2,
TAR-15).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import round_hints
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints, VisitHint
from medflare.core.run_record import RoundRecord
from medflare.federation.server.run_recorder import add_traffic, weighted_means

VISIT, LOSS = "visit", "loss"
"""Metrics of an update: what the plan already says, and what only a site that trained has."""


class RoundSchedule:
    """Ordinary rounds: one exchange of updates each.

    Attributes:
        exchanges_per_round: exchanges of updates in a round.
        accepts_zero_weight: whether a site may answer with an update of no examples, whatever the rule.
    """

    exchanges_per_round = 1
    accepts_zero_weight = False

    def check(self, rule: AggregationRule) -> None:
        """Raise ConfigError where the rule cannot work with this schedule."""

    def exchanges(self, number: int) -> range:
        """Return the indices of a round's exchanges, counted through the run."""
        return range(number * self.exchanges_per_round, (number + 1) * self.exchanges_per_round)

    def name(self, exchange: int) -> str:
        """Return an exchange as messages name it."""
        return f"round {exchange + 1}"

    def place(self, exchange: int) -> dict[str, int]:
        """Return the facts of an event that say where in the run an exchange is; counted from 0."""
        return {"round": exchange}

    def hints(self, exchange: int) -> RoundHints:
        """Return what every site is sent for an exchange, before the rule's own hints."""
        return RoundHints()

    def measured(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metrics of an update that were measured on the site's data."""
        return metrics

    @contextmanager
    def record_exchange(
        self, entry: RoundRecord, exchange: int, declared: Mapping[str, int]
    ) -> Iterator[RoundRecord]:
        """Provide the record that an exchange of this round is written into.

        Args:
            declared: training examples of every site.
        """
        yield entry


class VisitSchedule(RoundSchedule):
    """Temporal rounds: T exchanges each, one for each visit.

    Rule `temporal` says itself in its hint which visit is trained on; for any other rule this schedule does,
    and it is then a baseline over the same exchanges. A site without examples of a visit answers with an
    update of none, whatever the rule.
    """

    accepts_zero_weight = True

    def __init__(self, visits: int) -> None:
        self.exchanges_per_round = visits

    def check(self, rule: AggregationRule) -> None:
        check_visits(rule, self.exchanges_per_round)

    def name(self, exchange: int) -> str:
        visits = self.exchanges_per_round
        return f"round {exchange // visits + 1}, visit {exchange % visits + 1}"

    def place(self, exchange: int) -> dict[str, int]:
        visits = self.exchanges_per_round
        return {"round": exchange // visits, "visit": exchange % visits, "visits": visits}

    def hints(self, exchange: int) -> RoundHints:
        return RoundHints(visit=visit_hint(exchange, self.exchanges_per_round))

    def measured(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return no metrics of a site without examples of the visit, even where masks hide their number."""
        return {name: value for name, value in metrics.items() if name != VISIT} if LOSS in metrics else {}

    @contextmanager
    def record_exchange(
        self, entry: RoundRecord, exchange: int, declared: Mapping[str, int]
    ) -> Iterator[RoundRecord]:
        started, visit = time.monotonic(), RoundRecord(round=exchange, seconds=0.0)
        entry.exchanges.append(visit)
        try:
            yield visit
        finally:  # a run that ends here still has this visit in its record
            visit.seconds = round(time.monotonic() - started, 3)
            add_traffic(entry, visit.traffic)
            summarise_exchanges(entry, declared)


def visit_hint(exchange: int, visits: int) -> VisitHint:
    """Return the visit of an exchange, for a rule that names none itself."""
    number, visit = divmod(exchange, visits)
    return VisitHint(round=number, visit=visit + 1, visits=visits, slopes=False, days=False)


def check_visits(rule: AggregationRule, visits: int) -> None:
    """Raise ConfigError where the rule counts other visits than the controller."""
    hint = round_hints(rule).visit
    counted = visits if hint is None else hint.visits
    if counted != visits:
        raise ConfigError(
            f"rule_settings.visits is {counted}, and the controller's `visits` is {visits}. Set both to the "
            "number of visits a round goes through."
        )


def summarise_exchanges(entry: RoundRecord, declared: Mapping[str, int]) -> None:
    """Write into a round what its exchanges so far came to.

    Accepted is who was in every exchange, with the examples of all visits together; absent, who missed one,
    with the first reason. Metrics are means over the visits a site was in, timings their sums. Norms and what
    rule and protection report are the last exchange's, if it came to any.
    """
    visits = entry.exchanges
    always = set.intersection(*(set(visit.accepted) for visit in visits))
    examples = {site: sum(visit.accepted.get(site, 0) for visit in visits) for site in sorted(declared)}
    entry.accepted = {site: min(examples[site], declared[site]) for site in sorted(always)}
    entry.absent = {
        site: f"visit {number}: {reason}"
        for number, visit in reversed(list(enumerate(visits, 1)))
        for site, reason in sorted(visit.absent.items())
    }
    for site in sorted({site for visit in visits for site in visit.metrics}):
        by_visit = {str(visit.round): visit.metrics.get(site, {}) for visit in visits}
        weights = {str(visit.round): visit.accepted.get(site, 0) for visit in visits}
        entry.metrics[site] = weighted_means(by_visit, weights)
    entry.mean = weighted_means(entry.metrics, examples)
    entry.timings = {
        site: _seconds_of(visits, site) for site in sorted({s for v in visits for s in v.timings})
    }
    for part in ("checks", "rule", "protection"):
        latest_first = (getattr(visit, part) for visit in reversed(visits))
        setattr(entry, part, next((value for value in latest_first if value), {}))


def _seconds_of(visits: Sequence[RoundRecord], site: str) -> dict[str, float]:
    """Return the seconds of a site over the exchanges it was timed in."""
    timings = [visit.timings[site] for visit in visits if site in visit.timings]
    return {part: sum(times[part] for times in timings) for part in timings[0]}
