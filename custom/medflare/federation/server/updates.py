# SPDX-License-Identifier: Apache-2.0
"""An exchange of updates: who trains, what is accepted, the new state; and what becomes of a lost one.

Where a rule draws its sites, or a simulated clock makes some vanish, too few answers lose the exchange and
the state stays as it is; where nobody was drawn, a missed quorum ends the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from medflare.aggregation.capabilities import (
    NeedsSumMembers,
    ProbesLosses,
    SamplesClients,
    round_hints,
)
from medflare.core.errors import RunError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.core.tensors import State
from medflare.federation.messages import EVALUATE, FIT, Reply
from medflare.federation.outcome import Outcome, TooFewError
from medflare.federation.protections.base import UpcomingRound
from medflare.federation.server.client_sampling import losses, present, who_trains
from medflare.federation.server.run import RunController, any_reply
from medflare.federation.server.run_recorder import add_traffic, finite, weighted_means
from medflare.federation.server.scorer import CrossScorer, Scorer
from medflare.wire.digest import byte_count


class UpdatesController(RunController):
    """Exchanges of updates with the sites of a job; a subclass says when, and what surrounds them.

    Attributes:
        state: the shared tensors, and totals: the accepted updates' sums, both of the last exchange.
        summed: the sites of which those totals are.
        agreed: what sites agreed on before they train, as hints of every plan.
        scorer: who judges candidates, for a rule that weighs updates by a loss.
    """

    state: State
    totals: State
    summed: list[str]
    agreed: RoundHints
    scorer: Scorer | CrossScorer | None = None

    def _exchange(self, number: int, entry: RoundRecord) -> None:
        """One exchange of updates, from who takes part to the new state."""
        args, asked = self.args, self.roster.asked(number)
        rule, declared, sealed = self.aggregator.rule, self.aggregator.declared, self.protection.sealed
        sites, resting = who_trains(rule, number, args.seed, declared, asked, sealed)
        entry.absent = self.roster.resting(number) | resting
        plan = RoundPlan(
            round=number,
            rounds=self.exchanges,
            steps=args.steps,
            fraction=args.fraction,
            seed=args.seed,
            hints=self.hints(number)
            | RoundHints(summed=tuple(self.roster.sites.index(site) for site in self.summed)),
        )
        self.progress.event("round", round=number, rounds=self.exchanges, sites=sites)
        try:
            self._fit(sites, plan, entry)
        except TooFewError as error:
            if self.most is None:
                raise
            self._drop(entry, sites, f"the round was lost: {error}")
            if self.lost > args.max_lost_rounds:
                raise
            return
        self._aggregate(plan, entry)
        self.summed = sorted(entry.accepted)

    def _fit(self, sites: list[str], plan: RoundPlan, entry: RoundRecord) -> None:
        """The updates of those who were chosen; TooFewError where not enough of them came."""
        there, gone = self.times.attend(plan, sites)
        rule, outcome = self.aggregator.rule, Outcome(absent=dict(gone))
        self.most = len(sites) if rule.capability(SamplesClients) or gone else None
        entry.absent |= gone
        try:
            if len(there) >= self.quorum():
                outcome = self._train(there, plan, {})
                self._note(entry, outcome)
        except TooFewError as error:
            outcome = error.outcome
            self._miss(entry, outcome)
            raise
        finally:
            entry.timings = {site: t._asdict() for site, t in self.times.tell(rule, outcome).items()}
        self.require(outcome, self.named(plan.round))

    def hints(self, exchange: int) -> RoundHints:
        """What sites are told of an exchange beside the roster."""
        return self.agreed | round_hints(self.aggregator.rule)

    def named(self, exchange: int) -> str:
        """An exchange as messages name it."""
        return f"round {exchange}"

    def _train(self, sites: list[str], plan: RoundPlan, options: dict[str, Any]) -> Outcome:
        """One exchange of updates, judged by the checks and the rule; before it, the protection's steps."""
        tensors, brought = self.protection.outgoing(self.state, self.totals)
        coming = UpcomingRound(
            number=plan.round,
            sites=sites,
            quorum=self.quorum(),
            work=self.work(plan, tensors),
            canary=bool(options.get("canary")),
        )
        opened = self.protection.open_round(coming, self.talk(plan, self.enough()))
        lost = Outcome(
            facts={site: {} for site in opened.sites},
            absent=opened.absent,
            silent=opened.silent,
            waited=opened.waited,
        )
        self.require(lost, f"{self.named(plan.round)}, before training")
        self.aggregator.begin(plan.round, self.state, opened.sites)
        options = {**options, **opened.options, **brought}
        settle = self.aggregator.settle
        outcome = self.ask(FIT, self._accept, opened.sites, plan, tensors, options=options, settled=settle)
        if self.scorer is not None:
            self.scorer.plan = plan
        outcome.refuse(self.aggregator.judge())
        outcome.absent |= opened.absent
        outcome.silent += opened.silent
        outcome.waited |= opened.waited
        return outcome

    def _accept(self, site: str, reply: Reply) -> str | None:
        """Passes an update to the aggregator and reports what became of it."""
        reason = self.aggregator.accept(site, reply.round, reply.facts, reply.tensors)
        loss = finite(reply.facts.get("metrics", {})).get("loss")
        self.progress.event(
            "update",
            round=reply.round,
            site=site,
            verdict=reason or "accepted",
            loss=loss,
            bytes_sent=byte_count(reply.tensors),
            seconds=reply.facts.get("seconds"),
        )
        return reason

    def _aggregate(self, plan: RoundPlan, entry: RoundRecord) -> None:
        """The accepted updates, sealed or not, become the new state."""
        rule = self.aggregator.rule
        if self.protection.sealed and not self._open_sum(plan, entry):
            return
        members = rule.capability(NeedsSumMembers)
        if self.protection.sealed and members is not None:
            members.set_sum_members(entry.accepted)
        self.lost = 0
        self.state, self.totals, entry.checks = self.aggregator.finish()
        self._probe(plan, entry)
        entry.rule = self.aggregator.report()
        if not self.protection.sealed:
            self.progress.weights(plan.round, entry.rule)

    def _open_sum(self, plan: RoundPlan, entry: RoundRecord) -> bool:
        """Whether the sealed updates came to something the rule can work on."""
        try:
            whole = self.protection.open_sum(self.talk(plan))
        except RunError as error:
            self._lose(entry, error)
            return False
        self.lost = 0
        self.protection.commit()
        entry.protection = self.protection.report()
        if whole is None:
            return False
        self.aggregator.add_sum(whole)
        return True

    def _lose(self, entry: RoundRecord, error: RunError) -> None:
        """A round whose sum cannot be opened changes nothing; too many of them end the run."""
        entry.protection = {**self.protection.report(), "failed": str(error)}
        self._drop(entry, list(entry.accepted), f"the round's sum could not be opened: {error}")
        if self.lost > self.args.protection_settings.max_lost_rounds:
            raise error

    def _drop(self, entry: RoundRecord, sites: list[str], reason: str) -> None:
        """Takes back what a lost round's record says of `sites`; the state stays as it is."""
        for site in sites:
            entry.absent.setdefault(site, reason)
        entry.accepted, self.lost = {}, self.lost + 1
        self.aggregator.lose()
        if self.aggregator.rule.capability(SamplesClients) and sites:
            entry.rule = self.aggregator.report()
        self.progress.event("round lost", round=entry.round, reason=reason)

    def _probe(self, plan: RoundPlan, entry: RoundRecord) -> None:
        """The second exchange of a rule that wants losses before the round ends."""
        prober = self.aggregator.rule.capability(ProbesLosses)
        wanted = prober.probe() if prober else None
        if prober is None or wanted is None:
            return
        asked = replace(plan, hints=self.agreed | RoundHints(probe=wanted.examples))
        sites = present(wanted, self.roster.asked(plan.round))
        outcome = self.ask(EVALUATE, any_reply, sites, asked, wanted.state, {"split": "train"}, quorum=1)
        add_traffic(entry, outcome.traffic)
        for site, reason in outcome.absent.items():
            self.progress.event("probe failed", round=plan.round, site=site, reason=reason)
        prober.receive_losses(losses(outcome))

    def _note(self, entry: RoundRecord, outcome: Outcome) -> None:
        """Writes a fit exchange into the round's record."""
        entry.accepted = dict(sorted(self.aggregator.accepted.items()))
        add_traffic(entry, outcome.traffic)
        for site, facts in sorted(outcome.facts.items()):
            entry.metrics[site] = finite(facts["metrics"], "train")
            self.progress.curves(entry.round, site, entry.metrics[site])
        entry.mean = weighted_means(entry.metrics, entry.accepted)
        for site, reason in self.aggregator.refused.items():
            self.progress.event("update refused", round=entry.round, site=site, reason=reason)
        self._miss(entry, outcome)
        self.book.write()

    def _miss(self, entry: RoundRecord, outcome: Outcome) -> None:
        """Names who is missing from an exchange of updates, and benches who was silent.

        A rule that draws heeds odds and latencies instead: benching would tilt the step to all others.
        """
        entry.absent |= outcome.absent
        if self.aggregator.rule.capability(SamplesClients):
            return
        for site in outcome.silent:
            self.roster.bench(site, entry.round, outcome.absent[site])
