# SPDX-License-Identifier: Apache-2.0
"""The FLARE controllers that a job folder names: they compose a run from its parts and give it a good end.

`phases.run_all` is what happens in a run, `round.run_round` what happens in a round. Whatever they raise ends
the run with its reason in the record and the last good state on disk.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any, Literal

from medflare.core.config import parse
from medflare.core.errors import ConfigError, DataError, MedflareError
from medflare.core.run_record import RunRecord, read_record
from medflare.federation.engine import (
    Client,
    Controller,
    EventType,
    FLContext,
    FLContextKey,
    Shareable,
    Signal,
)
from medflare.federation.flare_messages import read_reply
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.channel import Channel, StoppedError
from medflare.federation.server.checkpoint_manager import CheckpointManager
from medflare.federation.server.deployment_report import read_report
from medflare.federation.server.late_updates import LateUpdates, straggler_problems
from medflare.federation.server.phases import PausedError, run_all
from medflare.federation.server.resume import note_resumption
from medflare.federation.server.roster import Roster
from medflare.federation.server.run import Run
from medflare.federation.server.run_folder import RunFolder
from medflare.federation.server.run_recorder import RunRecorder
from medflare.federation.server.run_state import has_state
from medflare.federation.server.run_values import SavedRun, load_run
from medflare.federation.server.schedule import RoundSchedule, VisitSchedule
from medflare.federation.server.scorer import SERVER
from medflare.federation.server.settings import RoundsSettings, TemporalSettings
from medflare.federation.server.sketch_exchange import SketchExchange
from medflare.federation.server.timing import timings_of
from medflare.federation.server.update_spool import UpdateSpool
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.protections.compatibility import unreadable
from medflare.protections.registry import get_protection
from medflare.protocol.submitted_job import read_submitted
from medflare.wire.disk_space import is_disk_broken, is_disk_full
from medflare.wire.storage import storage_folder
from medflare.worker.config import WorkerConfig
from medflare.worker.workers import ProcessWorker, Worker

PAUSE_TOPIC = "medflare.pause"
PAUSED = "paused after a round; `medflare resume` goes on with it"
NOT_CONNECTED = "not connected at submission, and FLARE gives a running job to no further site"


class RoundsController(Controller):
    """Runs `num_rounds` ordinary rounds over the sites of a job.

    Attributes:
        settings: the class of its arguments in config_fed_server.json.
        run: the parts of the running job.
    """

    settings: type[RoundsSettings] = RoundsSettings
    run: Run | None = None

    def __init__(self, **args: Any) -> None:
        super().__init__(task_check_period=0.05)
        self.args = parse(self.settings, args, "config_fed_server.json, controller args")

    def make_schedule(self) -> RoundSchedule:
        """Return the exchanges that a round goes through."""
        return RoundSchedule()

    def mixture(self) -> MixtureSettings | None:
        """Return the mixture of patients' profiles that the job names, if any."""
        return None

    def make_worker(self, config: WorkerConfig, folder: Path) -> Worker:
        """Return the worker in which the server scores updates."""
        if self.args.scorer == "thread":
            from medflare.worker.thread_worker import ThreadWorker  # a learner imports much

            return ThreadWorker(config)
        return ProcessWorker(config, folder)

    # ---- FLARE's side ------------------------------------------------------------------------------------

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Find the other components and open the run's folder."""
        engine, args, job = fl_ctx.get_engine(), self.args, str(fl_ctx.get_job_id())
        workspace = engine.get_workspace()
        self.schedule = self.make_schedule()
        self.aggregator: ValidatingAggregator = engine.get_component(args.aggregator_id)
        self.progress = engine.get_component(args.progress_id)
        self.folder = Path(workspace.get_run_dir(job))
        self.problem: MedflareError | None = None
        self.late = LateUpdates(args.late_updates, lambda site: bool(self.get_client_disconnect_time(site)))
        self.saved: SavedRun | None = None
        self.store = RunFolder.of(self.folder, job)
        before: RunRecord | None = None
        try:
            storage = storage_folder(Path(workspace.get_root_dir()), SERVER)
            self.store = RunFolder.of(storage, job, args.resumes)
            before = self._open_run(job)
        except MedflareError as error:  # told in `control_flow`, where a run ends with its reason
            self.problem = error
        self.run_id = before.run_id if before else _new_run_id()
        self.progress.open(self.folder)
        facts = {"run_id": self.run_id, "job": args.job}
        self.progress.watch(Path(engine.get_workspace().get_root_dir()), args.deadline, facts)
        configuration = {"controller": args.model_dump(mode="json")}
        self.recorder = RunRecorder(
            self.folder / "run.json",
            args.job,
            self.run_id,
            args.seed,
            configuration,
            copy=None if self.problem else self.store.record,
        )
        if before is not None and self.saved is not None:
            self.recorder.go_on_with(self.saved.record)
        writer = engine.get_component(args.persistor_id).writer
        self.checkpoints = CheckpointManager(self.folder, self.store, writer, self.recorder, args)
        connected = {client.name for client in engine.get_clients()}  # to whom FLARE deployed the job
        self.roster = Roster(
            args.sites or list(connected), args.suspend_rounds * self.schedule.exchanges_per_round
        )
        if self.saved is not None:
            self.roster.go_on_with(self.saved.values.roster)
        without = read_report(self.folder)
        for site in self.roster.sites:
            if site not in connected and site not in self.roster.excluded:
                self.roster.exclude(site, without.get(site, NOT_CONNECTED))
        self.recorder.record.preparation.pop("without_the_job", None)  # of the job before
        if without:
            self.recorder.record.preparation["without_the_job"] = without
        self.recorder.write()
        self.progress.event("started", sites=self.roster.eligible(0))
        for site, reason in {**without, **self.roster.excluded}.items():
            self.progress.event("excluded", site=site, reason=reason)

    def _open_run(self, job: str) -> RunRecord | None:
        """Hold the run's folder; load the state that an earlier job left, if this one resumes its run.

        Returns:
            The earlier job's record; None where the run begins.

        Raises:
            ConfigError: another process runs it, or there is nothing to go on with.
            DataError: what is there is damaged, or is another job's.
        """
        self.store.open(job, resuming=bool(self.args.resumes))
        if not self.args.resumes:
            return None
        if has_state(self.store.state):
            self.saved = load_run(self.store.state)
        before = self._record_before()
        if (before.job, before.seed) != (self.args.job, self.args.seed):
            raise ConfigError(
                f"run {self.store.path.name} is of job '{before.job}' with seed {before.seed}; this job is "
                f"'{self.args.job}' with seed {self.args.seed}. Resume a run with the job that began it."
            )
        if before.status == "completed":
            raise ConfigError(f"run {self.store.path.name} is completed; there is nothing left to do in it.")
        return before

    def _record_before(self) -> RunRecord:
        """Return the record of the run's earlier job; that of its state where run.json is damaged.

        Only the state is forced to the disk: a power cut may leave half a record.
        """
        try:
            return read_record(self.store.record)
        except DataError:
            if self.saved is None:
                raise
            return self.saved.record

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Let an admin ask for a pause, and a suspended site that FLARE reaches again, or
        that asks for work, take part."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_app_command(PAUSE_TOPIC, self._pause)
        elif event_type == EventType.CLIENT_RECONNECTED:
            self.roster.rejoin(str(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME)))
        elif event_type == EventType.BEFORE_PROCESS_TASK_REQUEST and self.run is not None:
            self.roster.rejoin(fl_ctx.get_peer_context().get_identity_name())

    def _pause(self, topic: str, data: Any, fl_ctx: FLContext, *others: Any, **more: Any) -> dict[str, Any]:
        """Have the run end after its present round."""
        self.store.ask_for_pause()
        self.progress.event("pause asked for")
        return {"run": self.store.path.name, "status": "it ends after the present round"}

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop: the record is closed in `control_flow`."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Refuse and name a reply that came after its exchange was closed; its site is no straggler."""
        if read_reply(result).failure is None:
            self.roster.record_replies([client.name], ())
        self.progress.event("late reply refused", site=client.name, task=task_name)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job, and write how it ended."""
        try:
            if self.problem is not None:
                raise self.problem
            self.checkpoints.reserve.hold()
            self.run = run = self.compose(abort_signal, fl_ctx)
            if self.args.resumes:
                done = self.saved.state.exchanges_done if self.saved else 0
                note_resumption(run, str(fl_ctx.get_job_id()), done)
            run_all(run, self.mixture(), self.saved)
            self.checkpoints.export_final(self.roster)
            self.recorder.close("completed", f"no final test at {run.untested}" if run.untested else "")
            self.progress.event("completed", rounds=len(self.recorder.record.rounds))
        except StoppedError:
            self._fail("stopped", "the job was aborted.", fl_ctx)
        except PausedError:
            self.checkpoints.export_final(self.roster)
            self.recorder.close("paused", PAUSED)
            self.progress.event("paused", rounds=len(self.recorder.record.rounds))
        except Exception as error:
            self._fail("failed", self._reason(error), fl_ctx)
        finally:
            self.checkpoints.reserve.release()
            if self.run is not None and self.run.scorer is not None:
                self.run.scorer.close()
            self.progress.close()
            self.store.close()

    def compose(self, abort: Signal, fl_ctx: FLContext) -> Run:
        """Return the run's parts.

        Raises:
            ConfigError: rule, protection and schedule do not go together, or the kit lacks something.
        """
        args, workspace = self.args, fl_ctx.get_engine().get_workspace()
        protection, rule = get_protection(args.protection), self.aggregator.rule
        name = self.aggregator.rule_name
        conflicts = [*unreadable(name, rule, protection), *straggler_problems(args, name, rule, protection)]
        if conflicts:
            raise ConfigError(" ".join(conflicts))
        self.schedule.check(rule)
        server_side = protection.server_side(args.protection_settings, Path(workspace.get_root_dir()))
        self.aggregator.protection = server_side
        self.aggregator.spool = UpdateSpool(self.store.updates)
        self.aggregator.limits = self.aggregator.limits_of(args.max_norm_ratio)
        self.aggregator.uplink = args.uplink
        self.aggregator.accepts_zero_weight |= self.schedule.accepts_zero_weight
        self.checkpoints.readable = server_side.readable
        self.recorder.record.protections = protection.seals
        exchanges = args.num_rounds * self.schedule.exchanges_per_round
        channel = Channel(
            controller=self,
            fl_ctx=fl_ctx,
            abort=abort,
            args=args,
            run_id=self.run_id,
            roster=self.roster,
            progress=self.progress,
            readable=server_side.readable,
        )
        return Run(
            args=args,
            run_id=self.run_id,
            folder=self.folder,
            workspace=workspace,
            submitted=read_submitted(Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))),
            channel=channel,
            roster=self.roster,
            aggregator=self.aggregator,
            protection=server_side,
            timings=timings_of(args),
            checkpoints=self.checkpoints,
            recorder=self.recorder,
            progress=self.progress,
            schedule=self.schedule,
            late=self.late,
            sketches=SketchExchange(rule, channel, self.recorder, args.sketch_growth, exchanges),
            make_worker=lambda config, folder: self.make_worker(config, folder),
        )

    def _reason(self, error: Exception) -> str:
        """Return what the record says of an error; where the disk is full, make room for it."""
        if is_disk_full(error):
            return self.checkpoints.make_room()
        if is_disk_broken(error):
            return f"the disk of the server is read-only, or fails: {error}. What was written before is good."
        if isinstance(error, MedflareError):
            return str(error)
        self.logger.exception("the rounds controller failed")
        return f"{type(error).__name__}: {error}"

    def _fail(self, status: Literal["failed", "stopped"], reason: str, fl_ctx: FLContext) -> None:
        """Write the record and the last good state, then tell FLARE.

        The record comes first: an adapter that cannot be written must not cost the reason.
        """
        for entry in self.recorder.record.rounds[-1:]:
            open_sites = set(self.roster.sites) - set(entry.accepted) - set(entry.absent)
            entry.absent |= dict.fromkeys(sorted(open_sites), "the run ended before its update was judged")
        writes = {
            "the reason": lambda: self.recorder.close(status, reason),
            "the last good state as an adapter": lambda: self.checkpoints.export_final(self.roster),
            "where the adapter is": self.recorder.write,
        }
        for what, write in writes.items():
            try:
                write()
            except Exception:
                self.logger.exception(f"{what} could not be written")
        self.progress.event(status, reason=reason)
        self.system_panic(reason, fl_ctx)


def _new_run_id() -> str:
    """Return an id that no other run has."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:8]}"


class TemporalRoundsController(RoundsController):
    """Runs `num_rounds` rounds of `visits` exchanges over the sites of the job (FedTAR)."""

    settings = TemporalSettings
    args: TemporalSettings

    def make_schedule(self) -> RoundSchedule:
        return VisitSchedule(self.args.visits)

    def mixture(self) -> MixtureSettings | None:
        return self.args.mixture
