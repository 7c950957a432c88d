# SPDX-License-Identifier: Apache-2.0
"""The rounds of a federated run: prepare, initialise, canary, rounds, finish (design.md 2, 4).

Quorum counts accepted updates; every site of the roster is in each round's record, accepted or absent with a
reason; after each round the state is on disk, and a run that cannot go on leaves its last good state.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from medflare.errors import RunError
from medflare.evaluation.run_record import RoundRecord
from medflare.federation import wire
from medflare.federation.compression import decompress, message_bytes
from medflare.federation.controllers.bookkeeping import add_traffic, finite, weighted_means
from medflare.federation.controllers.drawing import losses, present, who_trains
from medflare.federation.controllers.exchange import Outcome, TooFewError
from medflare.federation.controllers.preparation import agree, require_shared_notes
from medflare.federation.controllers.run import RunController, any_reply
from medflare.federation.controllers.sketching import Sketched, Sketches, wants_sketches
from medflare.federation.controllers.timing import workload
from medflare.federation.messages import EVALUATE, FINISH, FIT, INITIALISE, PREPARE, SKETCH, Reply
from medflare.federation.protections.base import Declared, Round
from medflare.federation.protections.weights import Weighing
from medflare.federation.roster import words
from medflare.federation.scorer import CrossScorer, Scorer, scores_candidates, server_opening
from medflare.federation.worker import ProcessWorker, ThreadWorker, Worker
from medflare.federation.worker_session import Opening
from medflare.learners.base import RoundPlan, State, check_state
from medflare.selection.clocked import Timed


class RoundsController(RunController):
    """Runs `num_rounds` rounds over the sites of the job."""

    def run_rounds(self) -> None:
        self.scorer: Scorer | CrossScorer | None = None
        self.agreed: dict[str, Any] = {}
        self._prepare()
        self.state, self.totals, self.summed = self._initialise(), dict[str, Any](), list[str]()
        self.agree()
        self.sketches, self.sketched = Sketches(), dict[str, int]()
        self._sketch(-1)
        if self.args.canary:
            self._canary()
        for number in range(self.args.num_rounds):
            self._round(number)
        self._finish()

    def agree(self) -> None:
        """What a subclass has the sites agree on before they train; into `agreed`, for every plan."""

    def prepare_options(self) -> dict[str, Any]:
        """What a subclass tells sites to declare."""
        return {}

    def _prepare(self) -> None:
        """What the sites are and have; backbones and shared tensors must agree before round 1."""
        hints = self.aggregator.rule.plan_hints()
        options = {"job": self.args.job, "hints": hints, **self.prepare_options()}
        outcome = self.ask(PREPARE, any_reply, options=options)
        self.require(outcome, "prepare")
        self.declared = outcome.facts
        for site, reason in outcome.absent.items():
            self.roster.exclude(site, f"prepare failed: {reason}")
        shared, sums, self.examples = agree(outcome.facts, self.roster.sites)
        if "influence" in self.aggregator.rule.plan_hints():
            require_shared_notes(outcome.facts)
        train = {site: counts.get("train", 0) for site, counts in self.examples.items()}
        self.aggregator.expect(shared, sums, train)
        self.protection.expect(
            Declared(
                run_id=self.run_id,
                shared=shared,
                sums=sums,
                weighing=Weighing.of(self.aggregator.rule, train, self.aggregator.idle),
                rounds=self.exchanges,
                described={s: facts["describe"].get("protection", {}) for s, facts in outcome.facts.items()},
            )
        )
        self.keeper.expect(outcome.facts, shared, self.protection.bytes_up(shared, self.args.uplink))
        record, said = self.book.record, outcome.facts[min(outcome.facts)]
        up = record.expected_bytes_per_direction or message_bytes(shared, self.args.uplink)
        self.times.expect(self.roster.sites, train, workload(said, record.expected_bytes_down, up))
        self.shared_spec = shared
        if scores_candidates(self.aggregator.rule):
            self._open_scorer(outcome.facts)
        elif self.aggregator.rule.scored_by == "sites":
            val = {site: counts.get("val", 0) for site, counts in self.examples.items()}
            self.scorer = CrossScorer(self._measure, val, self.progress.event)
            self.aggregator.bind(self.scorer)
        self.progress.event("prepared", sites=self.roster.sites, seconds=round(outcome.seconds, 2))

    def _sketch(self, exchange: int) -> None:
        """Asks every site for a sketch of its knowledge graph, for a rule that wants them."""
        rule, sites = self.aggregator.rule, self.roster.asked(max(exchange, 0))
        if not isinstance(rule, Sketched) or not wants_sketches(rule, exchange if exchange >= 0 else None):
            return
        plan = RoundPlan(round=exchange, rounds=self.exchanges) if exchange >= 0 else None
        held = {site: when for site, when in self.sketched.items() if site in self.sketches.held}
        options = {"held": held, "exchange": exchange, "growth": self.args.sketch_growth}
        take, everybody = self.sketches.accept, len(sites)
        outcome = self.ask(SKETCH, take, sites, plan, options=options, quorum=0, enough=everybody)
        new = self.sketches.settle(rule, exchange, outcome.absent)
        self.sketched |= dict.fromkeys(new, exchange)
        self.book.record.preparation["sketches"] = self.sketches.report(self.roster.sites)
        self.book.write()
        self.progress.event("sketches", new=new, without=self.sketches.without)

    def _open_scorer(self, facts: dict[str, dict[str, Any]]) -> None:
        """Starts the server's own scoring; its base model and tensors must be the sites'."""
        workspace, folder = self.fl_ctx.get_engine().get_workspace(), self.folder / "scorer"
        opening = server_opening(workspace, facts, self.run_id, self.args.seed, folder)
        worker, limit = self.make_worker(opening, folder), self.args.deadline
        self.scorer = scorer = Scorer(worker, limit, lambda: bool(self.abort.triggered), self.progress.event)
        scorer.prepare(facts, self.roster.sites)
        self.aggregator.bind(scorer)

    def _measure(self, plan: RoundPlan, candidate: State) -> dict[str, dict[str, float]]:
        """What every site measures of a candidate on its validation data."""
        sites = self.roster.asked(plan.round)
        outcome = self.ask(EVALUATE, any_reply, sites, plan, candidate, {"split": "val"}, quorum=1)
        if self.book.record.rounds:
            add_traffic(self.book.record.rounds[-1], outcome.traffic)
        return {site: finite(facts["metrics"]) for site, facts in sorted(outcome.facts.items())}

    def make_worker(self, opening: Opening, folder: Path) -> Worker:
        """The worker in which the server scores updates."""
        return ThreadWorker(opening) if self.args.scorer == "thread" else ProcessWorker(opening, folder)

    def _initialise(self) -> State:
        """The shared tensors before round 1, from the first site by name."""
        site, found = self.roster.asked(0)[0], dict[str, Any]()

        def take(_: str, reply: Reply) -> str | None:
            tensors = decompress(reply.tensors)
            check_state(tensors, self.shared_spec, f"initial tensors of site '{site}'")
            found.update(tensors)
            return None

        outcome = self.ask(INITIALISE, take, sites=[site], quorum=1)
        if not found:
            raise RunError(f"no initial state: {words(outcome.absent, [site])}")
        self.initial_traffic = outcome.traffic
        return {name: value.to(self.shared_spec[name][1]) for name, value in found.items()}

    def _canary(self) -> None:
        """One step at every site; its updates are checked like any other and thrown away."""
        hints = self.hints(0)
        plan = RoundPlan(round=0, rounds=self.exchanges, steps=1, seed=self.args.seed, hints=hints)
        sites = self.roster.asked(0)
        outcome = self._train(sites, plan, {"canary": True})
        for site in sites:
            moved = outcome.traffic.get(site)
            self.progress.event(
                "canary",
                site=site,
                verdict=outcome.absent.get(site, "accepted"),
                seconds=outcome.facts.get(site, {}).get("seconds"),
                bytes_sent=moved.sent if moved else 0,
                bytes_received=moved.received if moved else 0,
            )
        self.require(outcome, "the canary round")
        if self.protection.sealed:
            self.protection.close(self.talk(plan))

    def _round(self, number: int) -> None:
        started = time.monotonic()
        entry = self.book.open_round(number)
        if number == 0:
            add_traffic(entry, self.initial_traffic)
        for exchange in range(number * self.per_round, (number + 1) * self.per_round):
            self.at = exchange
            self._sketch(exchange)
            self._exchange(exchange, entry)
        took_part = entry.accepted or any(exchange.accepted for exchange in entry.exchanges)
        if took_part and self.args.evaluate_every and (number + 1) % self.args.evaluate_every == 0:
            self._evaluate(entry)
        entry.seconds = round(time.monotonic() - started, 3)
        entry.simulated_seconds = self.times.now
        state, _ = self.protection.down(self.state, {})
        self.keeper.sealed = self.protection.values()
        self.keeper.close_round(number, entry, state, self.totals, self.aggregator.rule, self.roster)
        self.progress.curves(number, "mean", entry.mean)
        self.progress.curves(number, "server", entry.checks)
        self.progress.event("round done", round=number, seconds=entry.seconds, mean=entry.mean)

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
            hints={
                **self.hints(number),
                "summed": [self.roster.sites.index(site) for site in self.summed],
            },
        )
        self.progress.event("round", round=number, rounds=self.exchanges, sites=sites)
        try:
            self._fit(sites, plan, entry)
        except TooFewError as error:
            if self.most is None:
                raise
            self._drop(entry, sites, f"the round was lost: {error}")
            if self.lost > args.lost_rounds:
                raise
            return
        self._aggregate(plan, entry)
        self.summed = sorted(entry.accepted)

    def _fit(self, sites: list[str], plan: RoundPlan, entry: RoundRecord) -> None:
        """The updates of those who were chosen; TooFewError where not enough of them came."""
        there, gone = self.times.attend(plan, sites)
        rule, outcome = self.aggregator.rule, Outcome(absent=dict(gone))
        self.most = len(sites) if rule.draws or gone else None
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

    def hints(self, exchange: int) -> dict[str, Any]:
        """What sites are told of an exchange beside the roster."""
        return {**self.agreed, **self.aggregator.rule.plan_hints()}

    def named(self, exchange: int) -> str:
        """An exchange as messages name it."""
        return f"round {exchange}"

    def _train(self, sites: list[str], plan: RoundPlan, options: dict[str, Any]) -> Outcome:
        """One exchange of updates, judged by the checks and the rule; before it, the protection's steps."""
        tensors, brought = self.protection.down(self.state, self.totals)
        coming = Round(
            number=plan.round,
            sites=sites,
            quorum=self.quorum(),
            work=self.work(plan, tensors),
            canary=bool(options.get("canary")),
        )
        opened = self.protection.open(coming, self.talk(plan, self.enough()))
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

    def _aggregate(self, plan: RoundPlan, entry: RoundRecord) -> None:
        """The accepted updates, sealed or not, become the new state."""
        rule = self.aggregator.rule
        if self.protection.sealed and not self._open_sum(plan, entry):
            return
        if self.protection.sealed and isinstance(rule, Timed):
            rule.in_sum(entry.accepted)
        self.lost = 0
        self.state, self.totals, entry.checks = self.aggregator.finish()
        self._probe(plan, entry)
        entry.rule = self.aggregator.report()
        if not self.protection.sealed:
            self.progress.weights(plan.round, entry.rule)

    def _open_sum(self, plan: RoundPlan, entry: RoundRecord) -> bool:
        """Whether the sealed updates came to something the rule can work on."""
        try:
            whole = self.protection.close(self.talk(plan))
        except RunError as error:
            self._lose(entry, error)
            return False
        self.lost = 0
        self.protection.keep()
        entry.protection = self.protection.report()
        if whole is None:
            return False
        self.aggregator.add_sum(whole)
        return True

    def _lose(self, entry: RoundRecord, error: RunError) -> None:
        """A round whose sum cannot be opened changes nothing; too many of them end the run."""
        entry.protection = {**self.protection.report(), "failed": str(error)}
        self._drop(entry, list(entry.accepted), f"the round's sum could not be opened: {error}")
        if self.lost > self.args.protection_settings.lost_rounds:
            raise error

    def _drop(self, entry: RoundRecord, sites: list[str], reason: str) -> None:
        """Takes back what a lost round's record says of `sites`; the state stays as it is."""
        for site in sites:
            entry.absent.setdefault(site, reason)
        entry.accepted, self.lost = {}, self.lost + 1
        self.aggregator.lose()
        if self.aggregator.rule.draws and sites:
            entry.rule = self.aggregator.report()
        self.progress.event("round lost", round=entry.round, reason=reason)

    def _probe(self, plan: RoundPlan, entry: RoundRecord) -> None:
        """The second exchange of a rule that wants losses before the round ends."""
        rule = self.aggregator.rule
        wanted = rule.probe()
        if wanted is None:
            return
        asked = replace(plan, hints={**self.agreed, "probe": wanted.examples})
        sites = present(wanted, self.roster.asked(plan.round))
        outcome = self.ask(EVALUATE, any_reply, sites, asked, wanted.state, {"split": "train"}, quorum=1)
        add_traffic(entry, outcome.traffic)
        for site, reason in outcome.absent.items():
            self.progress.event("probe failed", round=plan.round, site=site, reason=reason)
        rule.probed(losses(outcome))

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
        if self.aggregator.rule.draws:
            return
        for site in outcome.silent:
            self.roster.bench(site, entry.round, outcome.absent[site])

    def _evaluate(self, entry: RoundRecord) -> None:
        """Validation at the sites that took part; a site that fails is named, the round cannot be best."""
        plan = RoundPlan(
            round=self.at,
            rounds=self.exchanges,
            seed=self.args.seed,
            limit=self.args.limit,
            hints=self.agreed,
        )
        drawn = self.aggregator.rule.draws
        sites = self.roster.asked(self.at) if drawn else sorted(entry.accepted)
        tensors, brought = self.protection.down(self.state, {})
        outcome = self.ask(EVALUATE, any_reply, sites, plan, tensors, {"split": "val", **brought}, quorum=1)
        self._add_metrics(entry, outcome, "val")

    def _add_metrics(self, entry: RoundRecord, outcome: Outcome, split: str) -> None:
        """Writes an evaluation into a round's record; means only over a full set of sites."""
        add_traffic(entry, outcome.traffic)
        found = {site: finite(facts["metrics"], split) for site, facts in sorted(outcome.facts.items())}
        for site, values in found.items():
            entry.metrics.setdefault(site, {}).update(values)
            self.progress.curves(entry.round, site, values)
            self.progress.event(split, round=entry.round, site=site, **values)
        for site, reason in outcome.absent.items():
            self.progress.event(f"{split} failed", round=entry.round, site=site, reason=reason)
        if not outcome.absent:
            entry.mean |= weighted_means(found, {s: c.get(split, 0) for s, c in self.examples.items()})

    def _finish(self) -> None:
        """The sites' final test quality, with the final state."""
        last = self.exchanges
        args, hints = self.args, self.agreed
        plan = RoundPlan(round=last, rounds=last, seed=args.seed, limit=args.final_limit, hints=hints)
        tensors, brought = self.protection.down(self.state, {})
        if not self.protection.readable:
            brought["card"] = asdict(self.keeper.card(self.book.record.rounds[-1], len(self.roster.sites)))
        outcome = self.ask(FINISH, any_reply, self.roster.asked(last), plan, tensors, brought, quorum=1)
        add_traffic(self.book.record.rounds[-1], outcome.traffic)
        self.keeper.add_evaluations(outcome.facts)
        for site, facts in sorted(outcome.facts.items()):
            self.progress.event("tested", site=site, seconds=facts["seconds"])
        for site, reason in outcome.absent.items():
            self.progress.event("test failed", site=site, reason=reason)
        self.untested = words(outcome.absent, self.roster.sites)

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
            bytes_sent=wire.byte_count(reply.tensors),
            seconds=reply.facts.get("seconds"),
        )
        return reason

    def release(self) -> None:
        scorer: Scorer | CrossScorer | None = getattr(self, "scorer", None)
        if scorer is not None:
            scorer.close()
