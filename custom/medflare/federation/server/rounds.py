# SPDX-License-Identifier: Apache-2.0
"""The rounds of a federated run: prepare, initialise, canary, rounds, finish.

Quorum counts accepted updates; every site of the roster is in each round's record, accepted or absent with a
reason; after each round the state is on disk, and a run that cannot go on leaves its last good state.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medflare.aggregation.capabilities import (
    NeedsSketches,
    SamplesClients,
    ScoresCandidates,
    round_hints,
)
from medflare.core.errors import RunError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.core.site_description import description_of
from medflare.core.tensors import State, check_state
from medflare.federation.messages import EVALUATE, FINISH, INITIALISE, PREPARE, SKETCH, Reply
from medflare.federation.outcome import Outcome
from medflare.federation.protections.base import RunDeclaration
from medflare.federation.protections.weighting import UpdateWeighting
from medflare.federation.server.preparation import agree, compare_graphs, require_shared_notes
from medflare.federation.server.roster import words
from medflare.federation.server.run import any_reply
from medflare.federation.server.run_recorder import add_traffic, finite, weighted_means
from medflare.federation.server.scorer import CrossScorer, Scorer, scores_candidates, server_opening
from medflare.federation.server.sketch_exchange import Sketches, wants_sketches
from medflare.federation.server.timing import workload
from medflare.federation.server.updates import UpdatesController
from medflare.federation.site.worker import ProcessWorker, ThreadWorker, Worker
from medflare.federation.site.worker_config import WorkerConfig
from medflare.wire.compression import decompress, message_bytes


class RoundsController(UpdatesController):
    """Runs `num_rounds` rounds over the sites of the job."""

    def run_rounds(self) -> None:
        self.agreed = RoundHints()
        self._prepare()
        self.state, self.totals, self.summed = self._initialise(), {}, []
        self.agree()
        self.sketches, self.sketched = Sketches(), dict[str, int]()
        self._sketch(-1)
        compare_graphs(self)
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
        hints = round_hints(self.aggregator.rule)
        options = {"job": self.args.job, "hints": hints.to_json(), **self.prepare_options()}
        outcome = self.ask(PREPARE, any_reply, options=options, quorum=self.quorum())
        self.require(outcome, "prepare")
        self.declared = outcome.facts
        for site, reason in outcome.absent.items():
            self.roster.exclude(site, f"prepare failed: {reason}")
        shared, sums, self.examples = agree(outcome.facts, self.roster.sites)
        if hints.influence is not None:
            require_shared_notes(outcome.facts)
        train = {site: counts.get("train", 0) for site, counts in self.examples.items()}
        self.aggregator.expect(shared, sums, train)
        self.protection.expect(
            RunDeclaration(
                run_id=self.run_id,
                shared=shared,
                sums=sums,
                weighting=UpdateWeighting.of(self.aggregator.rule, train, self.aggregator.idle),
                rounds=self.exchanges,
                site_facts={s: description_of(facts, s).protection for s, facts in outcome.facts.items()},
            )
        )
        self.keeper.expect(outcome.facts, shared, self.protection.bytes_up(shared, self.args.uplink))
        record, said = self.book.record, outcome.facts[min(outcome.facts)]
        up = record.expected_bytes_per_direction or message_bytes(shared, self.args.uplink)
        self.times.expect(self.roster.sites, train, workload(said, record.expected_bytes_down, up))
        self.shared_spec = shared
        if scores_candidates(self.aggregator.rule):
            self._open_scorer(outcome.facts)
        elif self.aggregator.rule.capability(ScoresCandidates):
            val = {site: counts.get("val", 0) for site, counts in self.examples.items()}
            self.scorer = CrossScorer(self._measure, val, self.progress.event)
            self.aggregator.bind(self.scorer)
        self.progress.event("prepared", sites=self.roster.sites, seconds=round(outcome.seconds, 2))

    def _open_scorer(self, facts: dict[str, dict[str, Any]]) -> None:
        """Starts the server's own scoring; its base model and tensors must be the sites'."""
        workspace, folder = self.fl_ctx.get_engine().get_workspace(), self.folder / "scorer"
        config = server_opening(workspace, facts, self.run_id, self.args.seed, folder)
        worker, limit = self.make_worker(config, folder), self.args.deadline
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

    def make_worker(self, config: WorkerConfig, folder: Path) -> Worker:
        """The worker in which the server scores updates."""
        return ThreadWorker(config) if self.args.scorer == "thread" else ProcessWorker(config, folder)

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

    def _sketch(self, exchange: int) -> None:
        """Asks every site for a sketch of its knowledge graph, for a rule that wants them."""
        rule, sites = self.aggregator.rule, self.roster.asked(max(exchange, 0))
        sketched = rule.capability(NeedsSketches)
        if sketched is None or not wants_sketches(rule, exchange if exchange >= 0 else None):
            return
        plan = RoundPlan(round=exchange, rounds=self.exchanges) if exchange >= 0 else None
        held = {site: when for site, when in self.sketched.items() if site in self.sketches.held}
        options = {"held": held, "exchange": exchange, "growth": self.args.sketch_growth}
        outcome = self.ask(SKETCH, self.sketches.accept, sites, plan, options=options, quorum=0)
        new = self.sketches.settle(sketched, exchange, outcome.absent)
        self.sketched |= dict.fromkeys(new, exchange)
        self.book.record.preparation["sketches"] = self.sketches.report(self.roster.sites)
        self.book.write()
        self.progress.event("sketches", new=new, without=self.sketches.without)

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
            self.protection.open_sum(self.talk(plan))

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
        state, _ = self.protection.outgoing(self.state, {})
        self.keeper.sealed = self.protection.state_values()
        self.keeper.close_round(number, entry, state, self.totals, self.aggregator.rule, self.roster)
        self.progress.curves(number, "mean", entry.mean)
        self.progress.curves(number, "server", entry.checks)
        self.progress.event("round done", round=number, seconds=entry.seconds, mean=entry.mean)

    def _evaluate(self, entry: RoundRecord) -> None:
        """Validation at the sites that took part; a site that fails is named, the round cannot be best."""
        plan = RoundPlan(
            round=self.at,
            rounds=self.exchanges,
            seed=self.args.seed,
            limit=self.args.limit,
            hints=self.agreed,
        )
        drawn = self.aggregator.rule.capability(SamplesClients) is not None
        sites = self.roster.asked(self.at) if drawn else sorted(entry.accepted)
        tensors, brought = self.protection.outgoing(self.state, {})
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
        """The final test quality of all sites that began the run, with the final state."""
        last = self.exchanges
        args, hints = self.args, self.agreed
        plan = RoundPlan(round=last, rounds=last, seed=args.seed, limit=args.final_limit, hints=hints)
        tensors, brought = self.protection.outgoing(self.state, {})
        if not self.protection.readable:
            brought["card"] = asdict(self.keeper.card(self.book.record.rounds[-1], len(self.roster.sites)))
        sites = [site for site in self.roster.sites if site not in self.roster.excluded]
        outcome = self.ask(FINISH, any_reply, sites, plan, tensors, brought, quorum=1)
        add_traffic(self.book.record.rounds[-1], outcome.traffic)
        self.keeper.add_evaluations(outcome.facts)
        for site, facts in sorted(outcome.facts.items()):
            self.progress.event("tested", site=site, seconds=facts["seconds"])
        for site, reason in outcome.absent.items():
            self.progress.event("test failed", site=site, reason=reason)
        self.untested = words(outcome.absent, self.roster.sites)

    def release(self) -> None:
        if self.scorer is not None:
            self.scorer.close()
