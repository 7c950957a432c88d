# SPDX-License-Identifier: Apache-2.0
"""The site's FLARE executor: passes tasks to the worker that runs the learner, and its results through
egress."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.core.tensor_names import TOTAL_PREFIX, split_by_prefix
from medflare.egress.chain import Compress, Egress
from medflare.egress.declaration import EXACT
from medflare.egress.evaluation_limits import Measurement, admit_measurement, check_state
from medflare.egress.failures import FailureCode, MessageError, failure_of
from medflare.egress.job_memory import FILE as JOB_MEMORY
from medflare.egress.job_memory import JobMemory
from medflare.federation.engine import (
    EventType,
    Executor,
    FLContext,
    ReturnCode,
    Shareable,
    Signal,
    make_reply,
)
from medflare.federation.flare_messages import failure_reply, read_request, reply
from medflare.federation.signed_files import Signer
from medflare.federation.site.policy import policy_of
from medflare.federation.site.settings import ExecutorSettings
from medflare.federation.site.site_run import SiteRun
from medflare.learners.registry import get_method
from medflare.protections.base import SECURE, SiteContext, SiteProtection, keep_exact
from medflare.protections.none import NoProtection
from medflare.protections.registry import get_protection
from medflare.protocol import messages
from medflare.protocol.nested_settings import unmarked
from medflare.protocol.submitted_job import settings_digest
from medflare.wire.compression import CODECS, ErrorFeedback, compress
from medflare.wire.disk_space import DiskReserve
from medflare.wire.process_file import FolderLock, read_holder, write_holder
from medflare.wire.spec_codec import spec_from_json
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker.config import (
    WorkerConfig,
    residual_file,
)
from medflare.worker.workers import ProcessWorker, Worker

SECONDS_TO_GO = 60.0
"""Seconds a job waits for the one before it, of the same run, to end."""


class LearnerExecutor(Executor):
    """Pass tasks to the worker and its results through the egress chain; never let an exception out.

    FLARE would write the text of an exception into logs that may be streamed to the server, and abort the job
    at a RuntimeError.

    Args:
        args: as in `ExecutorSettings`.

    Raises:
        ConfigError: the arguments are not valid, or there is no such method.
    """

    def __init__(self, **args: Any) -> None:
        super().__init__()
        self.args = parse(ExecutorSettings, unmarked(args), "config_fed_client.json, executor args")
        self.check_method(self.args.method)
        self.worker: Worker | None = None
        self.egress: Egress | None = None
        self.protection: SiteProtection | None = None
        self.state_reserve: DiskReserve | None = None
        self.run_lock: FolderLock | None = None
        self.signers: list[Signer] | None = None
        self.submission_checked = False

    @staticmethod
    def check_method(method: str) -> None:
        """Raise ConfigError unless the method exists: a job can name nothing else."""
        get_method(method)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer one FLARE task: a reply, or a failure whose text may leave the site."""
        if task_name not in messages.TASKS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        round_number, run = -1, SiteRun(fl_ctx, self.args)
        try:
            request = read_request(shareable, task_name, run.site)
            round_number = request.round
            return self._answer(request, run, abort_signal)
        except Exception as error:
            failure = failure_of(error)
            with suppress(Exception):  # neither a full disk nor a wrong job id may let it out after all
                if failure.code is FailureCode.DISK_FULL:
                    run.reserve.release()
                run.log_trace(error)
            with suppress(Exception):
                self._egress_of_run(run).failed(task_name, round_number, failure)
            self.logger.warning(f"{task_name} of round {round_number + 1} failed with E{int(failure.code)}")
            return failure_reply(failure, round_number)

    def _answer(self, request: messages.Request, run: SiteRun, abort: Signal) -> Shareable:
        """Check a request, run its task, and send the result through egress.

        The order matters: the policy sees the request before the learner does, and what is declared in
        'prepare' is fixed before anything else can leave.
        """
        run.reserve.hold()
        egress = self._egress_for(request, run)
        self._check_protection(request)
        digest = self._check_settings(request)
        self._check_signers(egress, run)
        self._bind(request, digest, egress, run)
        egress.work = f"{request.uplink}:{request.work}" if request.work else ""
        self.state_reserve = run.hold_state_space(request) or self.state_reserve
        protection = self._protection(request, run)
        asked = Measurement.of(request.task, request.plan, request.options, len(request.roster))
        wanted = self._policy_facts(request, asked)
        place = protection.place(request)
        egress.admit(request.task, request.round, place, partners=run.partners(request), **wanted)
        if asked is not None:
            admit_measurement(egress.memory, asked, request.round, egress.sealed, request.work)
        if request.task in messages.STEPS:  # of a secure sum: no learner is needed
            facts = {SECURE: protection.answer_step(request)}
            sent = egress.send(request.task, request.round, TaskResult(facts, {}))
            return reply(request, sent.facts, sent.tensors)
        readable = replace(request, tensors=protection.readable_tensors(request))
        if egress.sealed and _brings_run_state(request, asked):
            state, _ = split_by_prefix(readable.tensors, TOTAL_PREFIX)
            check_state(egress.memory, request.task, request.round, state)
        if request.task == messages.FIT:
            protection.check_training(request)
        elif request.task in messages.MEASURE:
            protection.check_measuring(request)
        result = self._run_task(readable, run, abort)
        if request.task == messages.PREPARE:
            self._declare(result, egress, protection)
        compress, seal = self._compressor(request, result, run), protection.seal(request, result)
        if request.task == messages.FINISH:
            protection.export(request, run.folder / "result")
        alone = asked is not None and asked.alone
        # What is sealed is not rounded: masks cancel, and ciphertexts open, only as exact numbers.
        sent = egress.send(request.task, request.round, result, keep_exact if seal else compress, seal, alone)
        return reply(request, sent.facts, sent.tensors)

    def _bind(self, request: messages.Request, digest: str, egress: Egress, run: SiteRun) -> None:
        """Check that a request is of the run that this job is, or goes on with.

        Raises:
            MessageError: it is of another.
            PolicyError: this site lets no job go on with a run.
        """
        if self.args.resumes:
            egress.policy.resume()
        if request.task == messages.PREPARE:
            self._hold_run(run)
        egress.memory.bind(
            request.task,
            digest,
            request.run_id,
            request.seed,
            request.roster,
            submitter=self._submitter(run),
            job=egress.job_name,
            resumes=bool(self.args.resumes),
        )

    def _hold_run(self, run: SiteRun) -> None:
        """Work on the run alone: two jobs at once would each have its limits.

        A job that was just ended may take a moment to go.

        Raises:
            MessageError: another job works on it.
        """
        if self.run_lock is None:
            self.run_lock = FolderLock(run.state)
        if self.run_lock.held:
            return
        if not self.run_lock.acquire(SECONDS_TO_GO):
            raise MessageError(f"another job works on this run at this site ({read_holder(run.state).job}).")
        write_holder(run.state, run.job)

    def _check_protection(self, request: messages.Request) -> None:
        """Raise ConfigError where the server asks for another protection than this job came with."""
        if request.protection != self.args.protection:
            raise ConfigError(
                f"the server asks for protection '{request.protection}', and this job came to this site with "
                f"'{self.args.protection}'. Both configurations must say the same; nothing was done."
            )

    def _check_settings(self, request: messages.Request) -> str:
        """Return the digest of this site's settings; before round 1 they must be the submitted ones.

        Where a job's configuration says `{$NAME}`, FLARE has put this site's own value by now.

        Raises:
            ConfigError: they are others; the text names none.
        """
        digest = settings_digest(self.args.method, self.args.settings)
        if request.task == messages.PREPARE and request.options["settings_sha256"] != digest:
            raise ConfigError(
                "the settings that came to this site are not those that the server says were submitted; "
                "nothing was done. A job's settings can name no variable of a site."
            )
        return digest

    def _check_signers(self, egress: Egress, run: SiteRun) -> None:
        """Hold the rules on jobs and submitters against what was signed, before anything else is done.

        `SitePolicy` asked before deployment, of the submitter and the job whom the server named.

        Raises:
            PolicyError: a rule refuses one of them, or nobody signed and a rule names somebody.
            MessageError: the signed job ran here already, under another id.
        """
        if not run.signs:
            return
        self.signers = run.read_signers() if self.signers is None else self.signers
        egress.policy.signed(job=self.args.job, signers=self.signers)
        if self.signers and not self.submission_checked:
            run.check_submission()
            self.submission_checked = True

    def _submitter(self, run: SiteRun) -> str:
        """Return who submitted the job: by signatures where there are any, else as the server says."""
        if self.signers:
            return ", ".join(sorted(signer.name for signer in self.signers))
        return str(run.meta.get("submitter_name", ""))

    def _run_task(self, request: messages.Request, run: SiteRun, abort: Signal) -> TaskResult:
        """Run a task in the worker, within the smaller of the site's and the server's deadline."""
        self.worker = self.worker or self.make_worker(run.worker_config(request), run.folder)
        limit = min(self.args.deadline, request.deadline)
        return self.worker.run_task(self._task_request(request, run), limit, lambda: bool(abort.triggered))

    def _declare(self, result: TaskResult, egress: Egress, protection: SiteProtection) -> None:
        """Fix what may leave from here on, and add what this executor knows to the facts of 'prepare'."""
        shared, sums = (spec_from_json(result.facts[key]) for key in ("shared", "sums"))
        separate = {name: spec_from_json(spec) for name, spec in result.facts["separate_sums"].items()}
        egress.declare(shared, sums, separate, result.facts["describe"]["examples"])
        protection.declare(shared, sums, result.facts["describe"])
        protection.declare_sums(separate)
        result.facts["describe"]["protection"] = protection.facts()
        # Not its settings: FLARE may have put values of this site into them.
        result.facts["method"] = self.args.method

    def _protection(self, request: messages.Request, run: SiteRun) -> SiteProtection:
        """Return the site's side of the job's protection, under the rules in force now."""
        if self.protection is None:
            policy = self._egress_for(request, run).policy
            job = {"method": self.args.method, "settings": self.args.settings}
            site = SiteContext(site=run.site, kit=run.root, policy=policy, memory=run.state, job=job)
            self.protection = get_protection(self.args.protection).site_side(site)
        self.protection.apply_policy(self._egress_of_run(run).policy)
        return self.protection

    def _task_request(self, request: messages.Request, run: SiteRun) -> TaskRequest:
        """Return the worker's task, with what only this site knows: its place in the roster, its folders."""
        plan = dict(request.plan)
        place = {"site_index": request.roster.index(run.site), "sites": len(request.roster)}
        if plan:
            plan["hints"] = {**plan.get("hints", {}), **place}
        options = {**request.options, "sites": len(request.roster)}
        if request.task == messages.PREPARE and not self._egress_of_run(run).has_received_state():
            options["uplink"] = request.uplink
        if request.task in EXACT:
            options["partners"] = run.partners(request)
        protection = get_protection(self.args.protection)
        if request.task == messages.PREPARE:
            options["sums_of_metrics"] = protection.server_reads == "sum"
        if request.task == messages.FINISH or (request.task == messages.EVALUATE and protection.seals):
            options["folder"] = str(run.folder / "result")
        if request.task == messages.EVALUATE:
            options["drafts"] = str(run.folder / "worker")
        return TaskRequest(
            task=request.task, plan=plan, options=options, tensors=request.tensors, work=request.work
        )

    def make_worker(self, config: WorkerConfig, run_folder: Path) -> Worker:
        """Make the worker that the job's setting `worker` names."""
        if self.args.worker == "thread":
            from medflare.worker.thread_worker import ThreadWorker  # a learner imports much

            return ThreadWorker(config)
        return ProcessWorker(config, run_folder / "worker")

    def _compressor(self, request: messages.Request, result: TaskResult, run: SiteRun) -> Compress:
        """Return the function that compresses this reply.

        Quantised updates carry the error of the last one. Not so those that count nowhere, a canary's and one
        of no examples: their error would be fed into an update that does count.
        """
        exact_codec = CODECS[request.uplink].bits is None
        uncounted = request.options.get("canary") or not result.facts.get("examples")
        if exact_codec or request.task != messages.FIT or uncounted:
            return compress
        residual = residual_file(run.worker_config(request))
        return ErrorFeedback(residual, request.run_id, request.round).compress

    def _egress_for(self, request: messages.Request, run: SiteRun) -> Egress:
        """Return the run's egress chain with this request's codec and the rules in force at this moment."""
        egress = self._egress_of_run(run)
        egress.uplink = request.uplink
        egress.policy = policy_of(run.worker_config(request), egress.policy)  # admits packages
        return egress

    def _egress_of_run(self, run: SiteRun) -> Egress:
        if self.egress is None:
            self.egress = Egress(
                ledger=run.ledger(),
                site=run.site,
                job=run.job,
                job_name=run.job_name,
                sealed=self.args.protection != NoProtection.name,
                private=self.args.settings.get("dp") is not None,
                memory=JobMemory(run.state / JOB_MEMORY),
            )
        return self.egress

    def _policy_facts(self, request: messages.Request, asked: Measurement | None) -> dict[str, Any]:
        """Return what a request wants of this site, as arguments of `Policy.admit`."""
        limits = (asked and asked.examples, request.plan.get("limit"), self.args.settings.get("eval_limit"))
        return {
            "method": self.args.method,
            "protections": get_protection(request.protection).seals,
            "sites": len(request.roster),
            "rounds": max(request.plan.get("rounds", 0), request.round + 1) or None,
            "limit": min((limit for limit in limits if limit), default=None),  # 0 evaluates nothing
            "split": asked.split if asked else None,
        }

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """End the worker when the run ends, and give back what was kept free."""
        if event_type == EventType.END_RUN:
            self.close()
            with suppress(Exception):
                SiteRun(fl_ctx, self.args).reserve.release()

    def close(self) -> None:
        """End the worker, and let another job work on the run."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        if self.run_lock is not None:
            self.run_lock.release()
        if self.state_reserve is not None:
            with suppress(Exception):
                self.state_reserve.release()


def _brings_run_state(request: messages.Request, asked: Measurement | None) -> bool:
    """Return whether a request comes with the state of the run, to train on or to measure."""
    if asked is not None:
        return asked.of_state
    no_state = request.options.get("canary") or request.plan.get("hints", {}).get("profiles")
    return request.task == messages.FIT and not no_state
