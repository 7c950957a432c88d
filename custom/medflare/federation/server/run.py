# SPDX-License-Identifier: Apache-2.0
"""What every federated run has in common: FLARE's side of it, exchanges with the sites, quorum, a good end.

A controller of rounds says in `run_rounds` what happens; whatever it raises ends the run with its reason in
the record and the last good state on disk.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.core.config import parse
from medflare.core.errors import ConfigError, MedflareError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.federation.engine import Client, Controller, FLContext, Shareable, Signal
from medflare.federation.messages import FINISH, STEPS, Reply, Request, read_reply, work_digest
from medflare.federation.outcome import OnDone, OnReply, Outcome, TooFewError
from medflare.federation.protections.base import StepChannel
from medflare.federation.protections.compatibility import unreadable
from medflare.federation.protections.registry import PROTECTIONS
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.checkpoint_manager import Keeper
from medflare.federation.server.client_sampling import HIDING
from medflare.federation.server.exchange import (
    Exchange,
    WaitLimits,
)
from medflare.federation.server.roster import Roster, words
from medflare.federation.server.run_recorder import RunBook
from medflare.federation.server.settings import RoundsSettings
from medflare.federation.server.timing import SeenTimes, SimulatedTimes
from medflare.selection.clock import SimulatedClock, read_profiles
from medflare.wire.compression import compress
from medflare.wire.plan_codec import plan_to_json


class StoppedError(Exception):
    """The job was aborted from outside."""


class RunController(Controller):
    """One run over the sites of a job; `run_rounds` is what a subclass adds."""

    settings: type[RoundsSettings] = RoundsSettings

    def __init__(self, **args: Any) -> None:
        super().__init__(task_check_period=0.05)
        self.args = parse(self.settings, args, "config_fed_server.json, controller args")
        self.at = -1

    @property
    def per_round(self) -> int:
        """Exchanges of updates in a round; sites, benches and secure sums count exchanges."""
        return 1

    @property
    def exchanges(self) -> int:
        """Exchanges of updates in the run."""
        return self.args.num_rounds * self.per_round

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
        self.keeper = Keeper(self.folder, engine.get_component(args.persistor_id).writer, self.book, args)
        self.roster = Roster(
            args.sites or [client.name for client in engine.get_clients()],
            args.suspend_rounds * self.per_round,
        )
        self.book.write()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop: the record is closed in `control_flow`."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A reply that came after its exchange was closed is refused and named; its site is there, though."""
        if read_reply(result).failure is None:
            self.roster.heard([client.name], ())
        self.progress.event("late reply refused", site=client.name, task=task_name)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self.fl_ctx, self.abort = fl_ctx, abort_signal
        self.most: int | None = None
        self.lost = 0
        self.untested = ""
        try:
            self._protect()
            self.times = self._times()
            self.run_rounds()
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
            self.release()
            self.progress.close()

    @abstractmethod
    def run_rounds(self) -> None:
        """The run, from preparation to the final tests."""

    def release(self) -> None:
        """Gives back what a subclass holds beyond the run."""

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

    def _protect(self) -> None:
        """Makes the server's side of the job's protection."""
        kind, workspace = PROTECTIONS[self.args.protection], self.fl_ctx.get_engine().get_workspace()
        unfit = list(unreadable(self.aggregator.rule_name, self.aggregator.rule, kind))
        if unfit:
            raise ConfigError(" ".join(unfit))
        self.protection = kind.server_side(self.args.protection_settings, Path(workspace.get_root_dir()))
        self.aggregator.protection = self.protection
        self.keeper.readable = self.protection.readable
        self.book.record.protections = kind.seals

    def _times(self) -> SeenTimes:
        """Seconds as they pass, or of the job's latency profiles."""
        args = self.args
        if not args.latency_profiles:
            return SeenTimes(args.deadline)
        clock = SimulatedClock(read_profiles(args.latency_profiles), args.seed)
        return SimulatedTimes(clock, args.simulated_deadline or args.deadline)

    # ---- talking to sites --------------------------------------------------------------------------------

    def talk(self, plan: RoundPlan, enough: int | None = None) -> StepChannel:
        """How the protection speaks to sites in this round.

        enough: as in `Limits`; without, the quorum of each step.
        """

        return _Steps(self, plan, enough)

    def work(self, plan: RoundPlan, tensors: State) -> str:
        """Digest of what sites are sent to train on, where a protection binds them to it."""
        if not PROTECTIONS[self.args.protection].binds_work:
            return ""
        return work_digest(plan_to_json(plan), compress(tensors, self.args.downlink))

    def ask(
        self,
        task: str,
        on_reply: OnReply,
        sites: list[str] | None = None,
        plan: RoundPlan | None = None,
        tensors: State | None = None,
        options: dict[str, Any] | None = None,
        quorum: int | None = None,
        settled: OnDone | None = None,
        enough: int | None = None,
    ) -> Outcome:
        """One exchange with the sites; StoppedError if the job was aborted meanwhile.

        quorum: as in `Limits`; `quorum()` without.
        enough: as in `Limits`; without, `enough()`, or everybody where a quorum is named: a large hospital's
            test takes longer than a small one's.
        """
        exchange = Exchange(self._request(task, plan, tensors, options), on_reply, settled or _nothing)
        asked = self.roster.sites if sites is None else sites
        if quorum is None:
            return self._run(exchange, asked, self.quorum(), self.enough())
        return self._run(exchange, asked, quorum, enough)

    def ask_each(
        self, task: str, on_reply: OnReply, own: Mapping[str, tuple[dict[str, Any], State]]
    ) -> Outcome:
        """One exchange before round 0 in which every site gets options and tensors of its own; no quorum."""
        requests = {site: self._request(task, None, tensors, said) for site, (said, tensors) in own.items()}
        exchange = Exchange(self._request(task, None, None, None), on_reply, _nothing, requests)
        return self._run(exchange, sorted(own), 0, None)

    def _request(
        self, task: str, plan: RoundPlan | None, tensors: State | None, options: dict[str, Any] | None
    ) -> Request:
        args = self.args
        return Request(
            task=task,
            run_id=self.run_id,
            round=plan.round if plan else -1,
            roster=self.roster.sites,
            deadline=args.deadline,
            uplink=args.uplink,
            downlink="float32" if task == FINISH and not self.protection.readable else args.downlink,
            protection=args.protection,
            seed=args.seed,
            plan=plan_to_json(plan) if plan else {},
            options=options or {},
            tensors=tensors or {},
        )

    def _run(self, exchange: Exchange, sites: list[str], quorum: int, enough: int | None) -> Outcome:
        args, quiet = self.args, self.roster.quiet & set(sites)
        limits = WaitLimits(
            quorum=quorum,
            min_responses=enough,
            deadline=args.deadline,
            margin=args.margin,
            straggler_timeout=args.straggler_timeout,
            stragglers=frozenset(quiet if len(quiet) < len(sites) else ()),
        )
        outcome = exchange.run(self, sites, limits, self.fl_ctx, self.abort)
        if exchange.request.task not in STEPS:  # these are answered beside what a site is still doing
            done = [site for site in sites if site not in outcome.silent]
            self.roster.heard(done, outcome.overdue)
        if outcome.aborted:
            raise StoppedError
        return outcome

    def quorum(self) -> int:
        """Accepted replies without which an exchange has failed.

        Of sites that the rule drew one is enough, or so many as hide each other in a sum, unless the job asks
        for more of them: nobody takes the part of who is missing.
        """
        if self.most is None:
            return self.enough()
        least = HIDING if self.protection.sealed else 1
        return max(1, min(self.most, max(least, self.args.min_responses or 0)))

    def enough(self) -> int:
        """Accepted replies after which the others have `grace`: `min_accepted`, or all that were asked.

        Never fewer than the quorum: under masks the first that answer are not enough to hide each other.
        """
        wanted = len(self.roster.sites) if self.args.min_responses is None else self.args.min_responses
        return wanted if self.most is None else max(self.quorum(), min(wanted, self.most))

    def require(self, outcome: Outcome, what: str) -> None:
        """TooFewError that names every missing site unless the quorum was met."""
        need, got = self.quorum(), len(outcome.facts)
        if got < need and self.abort.triggered:
            raise StoppedError  # sites that were told first have already answered
        if got < need:
            resting = self.roster.resting(self.at)
            reasons = words({**resting, **outcome.absent}, self.roster.sites)
            raise TooFewError(f"{what}: {got} accepted, {need} needed. {reasons}", outcome)


class _Steps:
    """The steps of a protection in one round."""

    def __init__(self, run: RunController, plan: RoundPlan, enough: int | None) -> None:
        self.run, self.plan, self.enough = run, plan, enough

    def send_and_receive(
        self, task: str, sites: Sequence[str], options: Mapping[str, Any], on_reply: OnReply, quorum: int
    ) -> Outcome:
        outcome = self.run.ask(
            task,
            on_reply,
            list(sites),
            self.plan,
            options=dict(options),
            quorum=quorum,
            enough=quorum if self.enough is None else self.enough,
        )
        for site, reason in outcome.absent.items():
            self.run.progress.event("lost in the secure sum", round=self.plan.round, site=site, reason=reason)
        return outcome


def any_reply(site: str, reply: Reply) -> str | None:
    """Accepts whatever came back without a failure."""
    return None


def _nothing(site: str) -> dict[str, str]:
    """Nothing waits for this exchange's sites."""
    return {}
