# SPDX-License-Identifier: Apache-2.0
"""The rounds of a federated run: prepare, initialise, canary, rounds, finish (design.md 2, 4).

Quorum counts accepted updates; every site of the roster is in each round's record, accepted or absent with a
reason; after each round the state is on disk, and a run that cannot go on leaves its last good state.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from medflare.config import parse
from medflare.errors import MedflareError, RunError
from medflare.evaluation.run_record import RoundRecord
from medflare.federation import wire
from medflare.federation.aggregator import ValidatingAggregator
from medflare.federation.compression import decompress
from medflare.federation.controllers.bookkeeping import RunBook, add_traffic, finite, weighted_means
from medflare.federation.controllers.drawing import losses, present, who_trains
from medflare.federation.controllers.exchange import Exchange, Limits, OnReply, OnSettled, Outcome
from medflare.federation.controllers.keeping import Keeper
from medflare.federation.controllers.preparation import agree, require_shared_notes
from medflare.federation.controllers.settings import RoundsSettings
from medflare.federation.engine import Client, Controller, FLContext, Shareable, Signal
from medflare.federation.messages import EVALUATE, FINISH, FIT, INITIALISE, PREPARE, Reply, Request
from medflare.federation.protections import SEAL
from medflare.federation.protections.base import Declared, Talk
from medflare.federation.protections.sides import server_side
from medflare.federation.protections.weights import Weighing
from medflare.federation.roster import Roster, words
from medflare.federation.scorer import CrossScorer, Scorer, scores_candidates, server_opening
from medflare.federation.worker import ProcessWorker, ThreadWorker, Worker
from medflare.federation.worker_session import Opening
from medflare.learners.base import RoundPlan, State, check_state


class StoppedError(Exception):
    """The job was aborted from outside."""


class RoundsController(Controller):
    """Runs `num_rounds` rounds over the sites of the job."""

    def __init__(self, **args: Any) -> None:
        super().__init__(task_check_period=0.05)
        self.args = parse(RoundsSettings, args, "config_fed_server.json, controller args")

    # ---- FLARE's side ------------------------------------------------------------------------------------

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Finds the other components and opens the run's folder."""
        engine, args = fl_ctx.get_engine(), self.args
        self.aggregator: ValidatingAggregator = engine.get_component(args.aggregator_id)
        self.progress = engine.get_component(args.progress_id)
        self.folder = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id()))
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:8]}"
        self.progress.open(self.folder)
        configuration = {"controller": args.model_dump(mode="json")}
        self.book = RunBook(self.folder / "run.json", args.job, self.run_id, args.seed, configuration)
        self.keeper = Keeper(self.folder, engine.get_component(args.persistor_id), self.book, args)
        self.roster = Roster(
            args.sites or [client.name for client in engine.get_clients()], args.bench_rounds
        )
        self.book.write()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop: the record is closed in `control_flow`."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A reply that came after its exchange was closed is refused and named."""
        self.progress.event("late reply refused", site=client.name, task=task_name)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self.fl_ctx, self.abort = fl_ctx, abort_signal
        self.scorer: Scorer | CrossScorer | None = None
        self.most: int | None = None
        try:
            self._run()
            self.keeper.export_final(self.roster)
            self.book.close("completed", f"no final test at {self.untested}" if self.untested else "")
            self.progress.event("completed", rounds=len(self.book.record.rounds))
        except StoppedError:
            self._fail("stopped", "the job was aborted.")
        except MedflareError as error:
            self._fail("failed", str(error))
        except Exception as error:
            self.logger.exception("the rounds controller failed")
            self._fail("failed", f"{type(error).__name__}: {error}")
        finally:
            if self.scorer is not None:
                self.scorer.close()
            self.progress.close()

    def _fail(self, status: Any, reason: str) -> None:
        """Writes the record and the last good state, then tells FLARE."""
        for entry in self.book.record.rounds[-1:]:
            unsettled = set(self.roster.sites) - set(entry.accepted) - set(entry.absent)
            entry.absent |= dict.fromkeys(sorted(unsettled), "the run ended before its update was judged")
        try:
            self.keeper.export_final(self.roster)
        except Exception:
            self.logger.exception("the last good state could not be written as an adapter")
        self.book.close(status, reason)
        self.progress.event(status, reason=reason)
        self.system_panic(reason, self.fl_ctx)

    # ---- the run -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._protect()
        self._prepare()
        self.state, self.totals, self.summed = self._initialise(), dict[str, Any](), list[str]()
        if self.args.canary:
            self._canary()
        for number in range(self.args.num_rounds):
            self._round(number)
        self._finish()

    def _protect(self) -> None:
        """Makes the server's side of the job's protection."""
        kind, workspace = self.args.protection, self.fl_ctx.get_engine().get_workspace()
        self.protection = server_side(kind, self.args.protection_settings, workspace)
        self.aggregator.protection = self.protection
        self.keeper.readable = self.protection.readable
        self.book.record.protections = [SEAL[kind]] if self.protection.sealed else []

    def _prepare(self) -> None:
        """What the sites are and have; backbones and shared tensors must agree before round 1."""
        hints = self.aggregator.rule.plan_hints()
        outcome = self._ask(PREPARE, _any, options={"job": self.args.job, "hints": hints})
        self._require(outcome, "prepare")
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
                weighing=Weighing.of(self.aggregator.rule, train),
                rounds=self.args.num_rounds,
                described={s: facts["describe"].get("protection", {}) for s, facts in outcome.facts.items()},
            )
        )
        self.keeper.expect(outcome.facts, shared)
        self.shared_spec = shared
        if scores_candidates(self.aggregator.rule):
            self._open_scorer(outcome.facts)
        elif self.aggregator.rule.scored_by == "sites":
            val = {site: counts.get("val", 0) for site, counts in self.examples.items()}
            self.scorer = CrossScorer(self._measure, val, self.progress.event)
            self.aggregator.bind(self.scorer)
        self.progress.event("prepared", sites=self.roster.sites, seconds=round(outcome.seconds, 2))

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
        outcome = self._ask(EVALUATE, _any, sites, plan, candidate, {"split": "val"}, quorum=1)
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

        outcome = self._ask(INITIALISE, take, sites=[site], quorum=1)
        if not found:
            raise RunError(f"no initial state: {words(outcome.absent, [site])}")
        self.initial_traffic = outcome.traffic
        return {name: value.to(self.shared_spec[name][1]) for name, value in found.items()}

    def _canary(self) -> None:
        """One step at every site; its updates are checked like any other and thrown away."""
        hints = self.aggregator.rule.plan_hints()
        plan = RoundPlan(round=0, rounds=self.args.num_rounds, steps=1, seed=self.args.seed, hints=hints)
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
        self._require(outcome, "the canary round")
        if self.protection.sealed:
            self.protection.close(self._talk(plan))

    def _round(self, number: int) -> None:
        started = time.monotonic()
        entry = self.book.open_round(number)
        if number == 0:
            add_traffic(entry, self.initial_traffic)
        args, asked = self.args, self.roster.asked(number)
        rule, declared, sealed = self.aggregator.rule, self.aggregator.declared, self.protection.sealed
        sites, resting = who_trains(rule, number, args.seed, declared, asked, sealed)
        entry.absent = self.roster.resting(number) | resting
        self.most = len(sites) if self.aggregator.rule.draws else None
        plan = RoundPlan(
            round=number,
            rounds=args.num_rounds,
            steps=args.steps,
            fraction=args.fraction,
            seed=args.seed,
            hints={
                **self.aggregator.rule.plan_hints(),
                "summed": [self.roster.sites.index(site) for site in self.summed],
            },
        )
        self.progress.event("round", round=number, rounds=args.num_rounds, sites=sites)
        outcome = self._train(sites, plan, {})
        self._note(entry, outcome)
        self._require(outcome, f"round {number}")
        self._aggregate(plan, entry)
        self.summed = sorted(entry.accepted)
        if args.evaluate_every and (number + 1) % args.evaluate_every == 0:
            self._evaluate(number, entry)
        entry.seconds = round(time.monotonic() - started, 3)
        state, _ = self.protection.down(self.state, {})
        self.keeper.close_round(number, entry, state, self.totals, self.aggregator.rule, self.roster)
        self.progress.curves(number, "mean", entry.mean)
        self.progress.curves(number, "server", entry.checks)
        self.progress.event("round done", round=number, seconds=entry.seconds, mean=entry.mean)

    def _train(self, sites: list[str], plan: RoundPlan, options: dict[str, Any]) -> Outcome:
        """One exchange of updates, judged by the checks and the rule; before it, the protection's steps."""
        opened = self.protection.open(plan.round, sites, self._quorum(), self._talk(plan))
        lost = Outcome(facts={site: {} for site in opened.sites}, absent=opened.absent, silent=opened.silent)
        self._require(lost, f"round {plan.round}, before training")
        self.aggregator.begin(plan.round, self.state, opened.sites)
        tensors, brought = self.protection.down(self.state, self.totals)
        options = {**options, **opened.options, **brought}
        outcome = self._ask(FIT, self._accept, opened.sites, plan, tensors, options=options)
        if self.scorer is not None:
            self.scorer.plan = plan
        outcome.refuse(self.aggregator.judge())
        outcome.absent |= opened.absent
        outcome.silent += opened.silent
        return outcome

    def _aggregate(self, plan: RoundPlan, entry: RoundRecord) -> None:
        """The accepted updates, sealed or not, become the new state."""
        if self.protection.sealed:
            whole = self.protection.close(self._talk(plan))
            self.protection.keep()
            entry.protection = self.protection.report()
            if whole is None:
                return
            self.aggregator.add_sum(whole)
        self.state, self.totals, entry.checks = self.aggregator.finish()
        self._probe(plan, entry)
        entry.rule = self.aggregator.rule.report()
        if not self.protection.sealed:
            self.progress.weights(plan.round, entry.rule)

    def _probe(self, plan: RoundPlan, entry: RoundRecord) -> None:
        """The second exchange of a rule that wants losses before the round ends."""
        rule = self.aggregator.rule
        wanted = rule.probe()
        if wanted is None:
            return
        asked = replace(plan, hints={"probe": wanted.examples})
        sites = present(wanted, self.roster.asked(plan.round))
        outcome = self._ask(EVALUATE, _any, sites, asked, wanted.state, {"split": "train"}, quorum=1)
        add_traffic(entry, outcome.traffic)
        for site, reason in outcome.absent.items():
            self.progress.event("probe failed", round=plan.round, site=site, reason=reason)
        rule.probed(losses(outcome))

    def _note(self, entry: RoundRecord, outcome: Outcome) -> None:
        """Writes a fit exchange into the round's record and benches who was silent."""
        entry.absent |= outcome.absent
        entry.accepted = dict(sorted(self.aggregator.accepted.items()))
        add_traffic(entry, outcome.traffic)
        for site, facts in sorted(outcome.facts.items()):
            entry.metrics[site] = finite(facts["metrics"], "train")
            self.progress.curves(entry.round, site, entry.metrics[site])
        entry.mean = weighted_means(entry.metrics, entry.accepted)
        for site, reason in self.aggregator.refused.items():
            self.progress.event("update refused", round=entry.round, site=site, reason=reason)
        for site in outcome.silent:
            self.roster.bench(site, entry.round, outcome.absent[site])
        self.book.write()

    def _evaluate(self, number: int, entry: RoundRecord) -> None:
        """Validation at the sites that took part; a site that fails is named, the round cannot be best."""
        plan = RoundPlan(
            round=number, rounds=self.args.num_rounds, seed=self.args.seed, limit=self.args.limit
        )
        drawn = self.aggregator.rule.draws
        sites = self.roster.asked(number) if drawn else sorted(entry.accepted)
        tensors, brought = self.protection.down(self.state, {})
        outcome = self._ask(EVALUATE, _any, sites, plan, tensors, {"split": "val", **brought}, quorum=1)
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
        last = self.args.num_rounds
        plan = RoundPlan(round=last, rounds=last, seed=self.args.seed, limit=self.args.final_limit)
        tensors, brought = self.protection.down(self.state, {})
        if not self.protection.readable:
            brought["card"] = asdict(self.keeper.card(self.book.record.rounds[-1], len(self.roster.sites)))
        outcome = self._ask(FINISH, _any, self.roster.asked(last), plan, tensors, brought, quorum=1)
        add_traffic(self.book.record.rounds[-1], outcome.traffic)
        self.keeper.add_evaluations(outcome.facts)
        for site, facts in sorted(outcome.facts.items()):
            self.progress.event("tested", site=site, seconds=facts["seconds"])
        for site, reason in outcome.absent.items():
            self.progress.event("test failed", site=site, reason=reason)
        self.untested = words(outcome.absent, self.roster.sites)

    # ---- talking to sites --------------------------------------------------------------------------------

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

    def _talk(self, plan: RoundPlan) -> Talk:
        """How the protection speaks to sites in this round."""

        def talk(
            task: str, sites: Sequence[str], options: Mapping[str, Any], take: OnReply, quorum: int
        ) -> Outcome:
            outcome = self._ask(task, take, list(sites), plan, options=dict(options), quorum=quorum)
            for site, reason in outcome.absent.items():
                self.progress.event("lost in the secure sum", round=plan.round, site=site, reason=reason)
            return outcome

        return talk

    def _ask(
        self,
        task: str,
        on_reply: OnReply,
        sites: list[str] | None = None,
        plan: RoundPlan | None = None,
        tensors: State | None = None,
        options: dict[str, Any] | None = None,
        quorum: int | None = None,
    ) -> Outcome:
        """One exchange with the sites; StoppedError if the job was aborted meanwhile."""
        args = self.args
        request = Request(
            task=task,
            run_id=self.run_id,
            round=plan.round if plan else -1,
            roster=self.roster.sites,
            deadline=args.deadline,
            uplink=args.uplink,
            downlink=args.downlink,
            protection=args.protection,
            seed=args.seed,
            plan=wire.plan_to_json(plan) if plan else {},
            options=options or {},
            tensors=tensors or {},
        )
        limits = Limits(
            quorum=self._quorum() if quorum is None else quorum,
            deadline=args.deadline,
            margin=args.margin,
            grace=args.grace,
        )
        settled: OnSettled = self.aggregator.settle if task == FIT else _nothing
        exchange = Exchange(request, on_reply, settled)
        sites = self.roster.sites if sites is None else sites
        outcome = exchange.run(self, sites, limits, self.fl_ctx, self.abort)
        if outcome.aborted:
            raise StoppedError
        return outcome

    def _quorum(self) -> int:
        """Accepted replies that are enough; all of them where the rule drew fewer."""
        enough = len(self.roster.sites) if self.args.min_accepted is None else self.args.min_accepted
        return enough if self.most is None else min(enough, self.most)

    def _require(self, outcome: Outcome, what: str) -> None:
        """RunError that names every missing site unless the quorum was met."""
        need, got = self._quorum(), len(outcome.facts)
        if got < need and self.abort.triggered:
            raise StoppedError  # sites that were told first have already answered
        if got < need:
            resting = self.roster.resting(len(self.book.record.rounds) - 1)
            reasons = words({**resting, **outcome.absent}, self.roster.sites)
            raise RunError(f"{what}: {got} accepted, {need} needed. {reasons}")


def _any(site: str, reply: Reply) -> str | None:
    """Accepts whatever came back without a failure."""
    return None


def _nothing(site: str) -> dict[str, str]:
    """Nothing waits for this exchange's sites."""
    return {}
