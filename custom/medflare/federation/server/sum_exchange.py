# SPDX-License-Identifier: Apache-2.0
"""Exchanges in which sites answer with declared sums alone: added here, or opened by the run's protection.

Sums of patients' profiles before round 1 (`mixture`) and, under masks, sums of what sites measure
(`summed_evaluation`) go through the same steps, egress and protection as updates do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medflare.core.errors import RunError, UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.tensor_names import SUM_PREFIX, split_by_prefix
from medflare.core.tensors import SharedSpec, State, add_sums, check_state
from medflare.federation.server.quorum import Quorum
from medflare.federation.server.run import Run
from medflare.protections.base import ServerProtection, UpcomingRound
from medflare.protocol.messages import Reply
from medflare.protocol.outcome import Outcome
from medflare.wire.compression import decompress
from medflare.wire.spec_codec import spec_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SumExchange:
    """A request for a sum over the sites.

    Attributes:
        what: what it is called in messages.
        task, plan, tensors, options: of the request.
        sums: names, shapes and dtypes, as `declared_sums` returns them.
        required: how many sites must be in the sum; with fewer it is not opened. Everybody is waited for.
        impossible: (sums, the sites they are of) -> why they cannot be right, '' where they can.
    """

    what: str
    task: str
    plan: RoundPlan
    sums: SharedSpec
    sites: list[str]
    required: int
    tensors: State = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    impossible: Callable[[State, Sequence[str]], str] = lambda sums, sites: ""


def exchange_sums(run: Run, wanted: SumExchange) -> tuple[State, Outcome]:
    """Return (the totals over the sites that answered, who did and who did not).

    Raises:
        TooFewError: fewer than `required` answered; nothing was opened.
        RunError: the sum cannot be opened.
    """
    channel, protection = run.channel, run.protection
    in_round = channel.in_round(wanted.plan, min_responses=len(wanted.sites))
    upcoming = UpcomingRound(
        number=wanted.plan.round,
        sites=wanted.sites,
        quorum=wanted.required,
        work=channel.digest_work(wanted.plan, wanted.tensors),
        sums=wanted.sums,
    )
    opened = protection.open_round(upcoming, in_round)
    lost_early = Outcome(facts={site: {} for site in opened.sites}, absent=opened.absent)
    channel.require(lost_early, wanted.required, wanted.what, wanted.plan.round)
    collector = SumsCollector(wanted, protection)
    outcome = channel.broadcast(
        wanted.task,
        collector.accept,
        opened.sites,
        wanted.plan,
        wanted.tensors,
        {**wanted.options, **opened.options},
        quorum=Quorum(1),
    )
    outcome.absent |= opened.absent
    channel.require(outcome, wanted.required, wanted.what, wanted.plan.round)
    if not protection.sealed:
        return collector.totals(), outcome
    update = protection.open_sum(in_round)
    assert update is not None, "exchanges of sums are refused where the server can read none"
    sites = sorted(outcome.facts)
    if problem := wanted.impossible(update.sums, sites):
        raise RunError(
            f"{wanted.what}: the sum over {', '.join(sites)} holds {problem}. One of them sends wrong "
            "numbers, and under a protection nobody can see which: leave out one of them at a time."
        )
    return update.sums, outcome


class SumsCollector:
    """The replies of one such exchange: added up here, or in a sum that nobody can look into."""

    def __init__(self, wanted: SumExchange, protection: ServerProtection) -> None:
        self.wanted, self.protection = wanted, protection
        self._sums: dict[str, State] = {}

    def accept(self, site: str, reply: Reply) -> str | None:
        """Take a reply; return the reason where it cannot be used."""
        what = self.wanted.what
        try:
            if self.protection.sealed:
                self.protection.add_sealed(site, reply.facts, reply.tensors)
                return None
            others, sums = split_by_prefix(decompress(reply.tensors), SUM_PREFIX)
            check_state(others, {}, what)
            check_state(sums, self.wanted.sums, what)
        except UpdateError as error:
            return f"{what}: {error}"
        if problem := self.wanted.impossible(sums, [site]):
            return f"{what}: {problem}"
        self._sums[site] = sums
        return None

    def totals(self) -> State:
        """Return the totals, added in order of the sites' names, which makes a run repeatable."""
        return add_sums([self._sums[site] for site in sorted(self._sums)])


def declared_sums(facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str], exchange: str) -> SharedSpec:
    """Return the sums that all sites declared for an exchange.

    Raises:
        RunError: naming who declared others, or none.
    """
    declared = {site: facts[site]["separate_sums"].get(exchange) for site in sites if site in facts}
    first = next(iter(declared))
    different = [site for site in declared if declared[site] != declared[first]]
    if different or declared[first] is None:
        raise RunError(
            f"{', '.join(different) or first} declared other sums for the exchange '{exchange}' than "
            f"{first}, or none. Give all sites the same settings, of profile and mixture too, and the same "
            "version of medflare."
        )
    return spec_from_json(declared[first])
