# SPDX-License-Identifier: Apache-2.0
"""Temporal rounds: T exchanges each, one for each visit of the patients (TAR-2, TAR-15).

An exchange is an ordinary one, with checks, quorum and protection. What sites, benches and secure sums know
as a round is an exchange, counted through the run; the record has a round for every T of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import round_hints
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints, VisitHint
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.core.tensors import SharedSpec, State
from medflare.federation.messages import FIT
from medflare.federation.outcome import Outcome
from medflare.federation.protections.base import UpcomingRound
from medflare.federation.server.mixture import Gathered, agree_on_mixture, agreed_specs
from medflare.federation.server.rounds import RoundsController
from medflare.federation.server.run_recorder import add_traffic, weighted_means
from medflare.federation.server.settings import TemporalSettings
from medflare.federation.site.mixture_sums import mixture_hint
from medflare.learners.fedtar.mixture import MixtureSettings

VISIT, LOSS = "visit", "loss"
"""Metrics of an update: what the plan already says, and what only a site that trained has."""


class TemporalRoundsController(RoundsController):
    """Runs `num_rounds` rounds of `visits` exchanges over the sites of the job.

    Rule `temporal` says itself in its hint which visit is trained on; for any other rule this controller
    does, and it is then a baseline over the same exchanges. A site without examples of a visit answers with
    an update of none, whatever the rule.
    """

    settings = TemporalSettings
    args: TemporalSettings

    @property
    def per_round(self) -> int:
        return self.args.visits

    def run_rounds(self) -> None:
        check_visits(self.aggregator.rule, self.args.visits)
        check_mixture(self.args.mixture, self.args.protection)
        self.aggregator.idle = True
        super().run_rounds()

    def prepare_options(self) -> dict[str, Any]:
        return {"mixture": {"components": self.fitted.components}} if self.fitted else {}

    @property
    def fitted(self) -> MixtureSettings | None:
        """The mixture that is to be fitted over the sites, if one is."""
        mixture = self.args.mixture
        return mixture if mixture is not None and mixture.source == "federated" else None

    def agree(self) -> None:
        if self.fitted is None:
            return
        specs = agreed_specs(self.declared, self.roster.sites)
        server = agree_on_mixture(self.fitted, specs, self.args.seed, self._gather)
        assert server.mixture is not None
        self.agreed, told = mixture_hint(server.mixture), server.report()
        self.keeper.persistor.export |= self.agreed.to_json()  # who tests the result elsewhere needs it too
        self.book.record.preparation = {"mixture": told}
        self.book.write()
        self.progress.event("mixture", components=told["components"], iterations=told["iterations"])

    def _gather(self, number: int, spec: SharedSpec, hints: RoundHints) -> State:
        """One exchange of sums alone."""
        what = f"the mixture of profiles, {hints.profiles}"
        plan = RoundPlan(round=number, rounds=self.exchanges, seed=self.args.seed, hints=hints)
        work, sites = self.work(plan, {}), self.roster.asked(0)
        coming = UpcomingRound(number=number, sites=sites, quorum=self.quorum(), work=work, sums=spec)
        opened = self.protection.open_round(coming, self.talk(plan))
        gathered = Gathered(spec, self.protection)
        quorum = self.quorum()
        outcome = self.ask(FIT, gathered.accept, opened.sites, plan, options=opened.options, quorum=quorum)
        outcome.absent |= opened.absent
        self.require(outcome, what)
        early = RoundRecord(round=0, seconds=0.0, traffic=self.initial_traffic)
        add_traffic(early, outcome.traffic)
        self.initial_traffic = early.traffic
        if not self.protection.sealed:
            return gathered.totals()
        whole = self.protection.open_sum(self.talk(plan))
        assert whole is not None, "a masked sum can be read"
        return whole.sums

    def hints(self, exchange: int) -> RoundHints:
        return RoundHints(visit=visit_hint(exchange, self.per_round)) | super().hints(exchange)

    def named(self, exchange: int) -> str:
        return f"round {exchange // self.per_round}, visit {exchange % self.per_round + 1}"

    def _note(self, entry: RoundRecord, outcome: Outcome) -> None:
        """A site without examples of the visit has measured nothing, even where masks hide their number."""
        for facts in outcome.facts.values():
            told = facts["metrics"]
            facts["metrics"] = {n: x for n, x in told.items() if n != VISIT} if LOSS in told else {}
        super()._note(entry, outcome)

    def _exchange(self, number: int, entry: RoundRecord) -> None:
        started, visit = time.monotonic(), RoundRecord(round=number, seconds=0.0)
        entry.exchanges.append(visit)
        try:
            super()._exchange(number, visit)
        finally:
            visit.seconds = round(time.monotonic() - started, 3)
            add_traffic(entry, visit.traffic)
            fold(entry, self.aggregator.declared)


def visit_hint(exchange: int, visits: int) -> VisitHint:
    """Return the visit of an exchange, for a rule that names none itself."""
    number, visit = divmod(exchange, visits)
    return VisitHint(round=number, visit=visit + 1, visits=visits, slopes=False, days=False)


def check_visits(rule: AggregationRule, visits: int) -> None:
    """ConfigError where the rule counts other visits than the controller."""
    hint = round_hints(rule).visit
    own = visits if hint is None else hint.visits
    if own != visits:
        raise ConfigError(
            f"rule_settings.visits is {own}, and the controller's `visits` is {visits}. Set both to the "
            "number of visits a round goes through."
        )


def check_mixture(mixture: MixtureSettings | None, protection: str) -> None:
    """ConfigError where a mixture is to be fitted from sums that nobody at the server can read."""
    if mixture is not None and mixture.source == "federated" and protection == "he":
        raise ConfigError(
            "the server computes the mixture of profiles from sums that stay encrypted under homomorphic "
            "encryption. Use masking, or mixture.source 'global_fixed' or 'per_client'."
        )


def fold(entry: RoundRecord, declared: Mapping[str, int]) -> None:
    """Writes into a round what its exchanges so far came to.

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
        found = {str(v.round): v.metrics.get(site, {}) for v in visits}
        weights = {str(v.round): v.accepted.get(site, 0) for v in visits}
        entry.metrics[site] = weighted_means(found, weights)
    entry.mean = weighted_means(entry.metrics, examples)
    entry.timings = {site: _spent(visits, site) for site in sorted({s for v in visits for s in v.timings})}
    for part in ("checks", "rule", "protection"):
        told = (getattr(visit, part) for visit in reversed(visits))
        setattr(entry, part, next((value for value in told if value), {}))


def _spent(visits: Sequence[RoundRecord], site: str) -> dict[str, float]:
    """Seconds of a site over the exchanges it was timed in."""
    told = [visit.timings[site] for visit in visits if site in visit.timings]
    return {part: sum(times[part] for times in told) for part in told[0]}
