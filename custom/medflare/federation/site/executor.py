# SPDX-License-Identifier: Apache-2.0
"""The site's FLARE executor: passes tasks to the worker that runs the learner, and its results through
egress."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.egress import ledger
from medflare.egress.chain import Compress, Egress
from medflare.egress.declaration import EXACT
from medflare.egress.failures import failure_of
from medflare.federation import messages
from medflare.federation.engine import (
    EventType,
    Executor,
    FLContext,
    ReturnCode,
    Shareable,
    Signal,
    make_reply,
)
from medflare.federation.nested import unmarked
from medflare.federation.protections.base import SECURE, SiteContext, SiteProtection, keep_exact
from medflare.federation.protections.registry import PROTECTIONS, ProtectionName
from medflare.federation.site.policy import job_name, policy_of
from medflare.federation.site.worker import ProcessWorker, ThreadWorker, Worker
from medflare.federation.site.worker_config import WorkerConfig, residual_file, site_file
from medflare.learners.registry import get_method
from medflare.wire.compression import CODECS, ErrorFeedback, compress
from medflare.wire.spec_codec import spec_from_json
from medflare.wire.task_messages import TaskRequest, TaskResult


class ExecutorSettings(Settings):
    """`args` of the executor in config_fed_client.json.

    `settings` belongs to the method and is validated by the method's own settings class at the site.
    """

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    protection: ProtectionName = "none"
    """As the controller's: a server that asks for another one than the job was submitted with is refused."""
    worker: Literal["process", "thread"] = "process"
    deadline: float = 86400.0
    """The site's own limit for one task in seconds; the server's limit counts too, the smaller one wins."""


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
        round_number = -1
        try:
            request = messages.read_request(shareable, PROTECTIONS[self.args.protection].binds_work)
            round_number = request.round
            return self._answer(request, fl_ctx, abort_signal)
        except Exception as error:
            failure = failure_of(error)
            self._log_trace(error, fl_ctx)
            self._egress_of_run(fl_ctx).failed(task_name, round_number, failure)
            self.logger.warning(f"{task_name} of round {round_number} failed with E{int(failure.code)}")
            return messages.failure_reply(failure, round_number)

    def _answer(self, request: messages.Request, fl_ctx: FLContext, abort: Signal) -> Shareable:
        """Check a request, run its task, and send the result through egress.

        The order matters: the policy sees the request before the learner does, and what is declared in
        'prepare' is fixed before anything else can leave.
        """
        egress = self._egress_for(request, fl_ctx)
        self._check_protection(request)
        partners = self._partners(request, fl_ctx)
        egress.admit(request.task, request.round, partners=partners, **self._policy_facts(request))
        protection = self._protection(request, fl_ctx)
        if request.task in messages.STEPS:  # of a secure sum: no learner is needed
            facts = {SECURE: protection.answer_step(request)}
            sent = egress.send(request.task, request.round, TaskResult(facts, {}))
            return messages.reply(request, sent.facts, sent.tensors)
        result = self._run_task(replace(request, tensors=protection.readable_tensors(request)), fl_ctx, abort)
        if request.task == messages.PREPARE:
            self._declare(result, egress, protection)
        compress, seal = self._compressor(request, result, fl_ctx), None
        if request.task == messages.FIT:
            seal = protection.seal(request, result)
        elif request.task == messages.FINISH:
            protection.export(request, _run_folder(fl_ctx) / "result")
        # A sealed update is not rounded: masks cancel, and ciphertexts open, only as exact numbers.
        sent = egress.send(request.task, request.round, result, keep_exact if seal else compress, seal)
        return messages.reply(request, sent.facts, sent.tensors)

    def _check_protection(self, request: messages.Request) -> None:
        """Raise ConfigError where the server asks for another protection than this job came with."""
        if request.protection != self.args.protection:
            raise ConfigError(
                f"the server asks for protection '{request.protection}', and this job came to this site with "
                f"'{self.args.protection}'. Both configurations must say the same; nothing was done."
            )

    def _run_task(self, request: messages.Request, fl_ctx: FLContext, abort: Signal) -> TaskResult:
        """Run a task in the worker, within the smaller of the site's and the server's deadline."""
        config, folder = self._worker_config(request, fl_ctx), _run_folder(fl_ctx)
        self.worker = self.worker or self.make_worker(config, folder)
        limit = min(self.args.deadline, request.deadline)
        return self.worker.run_task(self._task_request(request, fl_ctx), limit, lambda: bool(abort.triggered))

    def _declare(self, result: TaskResult, egress: Egress, protection: SiteProtection) -> None:
        """Fix what may leave from here on, and add what this executor knows to the facts of 'prepare'."""
        shared, sums = (spec_from_json(result.facts[key]) for key in ("shared", "sums"))
        profiles = [spec_from_json(spec) for spec in result.facts.get("profiles", {}).values()]
        egress.declare(shared, sums, profiles)
        protection.declare(shared, sums, result.facts["describe"])
        protection.declare_sums(profiles)
        result.facts["describe"]["protection"] = protection.facts()
        result.facts.update(method=self.args.method, settings=self.args.settings)

    def _protection(self, request: messages.Request, fl_ctx: FLContext) -> SiteProtection:
        """Return the site's side of the job's protection, under the rules in force now."""
        if self.protection is None:
            root = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
            policy = self._egress_for(request, fl_ctx).policy
            memory = Path(self._worker_config(request, fl_ctx).state_folder)
            site = SiteContext(site=fl_ctx.get_identity_name(), kit=root, policy=policy, memory=memory)
            self.protection = PROTECTIONS[self.args.protection].site_side(site)
        self.protection.apply_policy(self._egress_of_run(fl_ctx).policy)
        return self.protection

    def _partners(self, request: messages.Request, fl_ctx: FLContext) -> list[str]:
        """Return the names of the other sites of the run."""
        return [name for name in request.roster if name != fl_ctx.get_identity_name()]

    def _task_request(self, request: messages.Request, fl_ctx: FLContext) -> TaskRequest:
        """Return the worker's task, with what only this site knows: its place in the roster, its folders."""
        plan = dict(request.plan)
        place = {"site_index": request.roster.index(fl_ctx.get_identity_name()), "sites": len(request.roster)}
        if plan:
            plan["hints"] = {**plan.get("hints", {}), **place}
        options = {**request.options, "sites": len(request.roster)}
        if request.task in EXACT:
            options["partners"] = self._partners(request, fl_ctx)
        if request.task == messages.FINISH:
            options["folder"] = str(_run_folder(fl_ctx) / "result")
        return TaskRequest(task=request.task, plan=plan, options=options, tensors=request.tensors)

    def _worker_config(self, request: messages.Request, fl_ctx: FLContext) -> WorkerConfig:
        workspace = fl_ctx.get_engine().get_workspace()
        root = Path(workspace.get_root_dir())
        return WorkerConfig(
            method=self.args.method,
            settings=self.args.settings,
            seed=request.seed,
            site=fl_ctx.get_identity_name(),
            site_file=str(site_file(root, Path(workspace.get_site_config_dir()))),
            state_folder=str(root / "local_state" / str(fl_ctx.get_job_id())),
            cache_folder=str(root / "cache"),
            run_id=request.run_id,
        )

    def make_worker(self, config: WorkerConfig, run_folder: Path) -> Worker:
        """Make the worker that the job's setting `worker` names."""
        if self.args.worker == "thread":
            return ThreadWorker(config)
        return ProcessWorker(config, run_folder / "worker")

    def _compressor(self, request: messages.Request, result: TaskResult, fl_ctx: FLContext) -> Compress:
        """Return the function that compresses this reply.

        Quantised updates carry the error of the last one. Not so those that count nowhere, a canary's and one
        of no examples: their error would be fed into an update that does count.
        """
        exact_codec = CODECS[request.uplink].bits is None
        uncounted = request.options.get("canary") or not result.facts.get("examples")
        if exact_codec or request.task != messages.FIT or uncounted:
            return compress
        config = self._worker_config(request, fl_ctx)
        return ErrorFeedback(residual_file(config), request.run_id).compress

    def _egress_for(self, request: messages.Request, fl_ctx: FLContext) -> Egress:
        """Return the run's egress chain with this request's codec and the rules in force at this moment."""
        egress = self._egress_of_run(fl_ctx)
        egress.uplink = request.uplink
        egress.policy = policy_of(self._worker_config(request, fl_ctx), egress.policy)
        return egress

    def _egress_of_run(self, fl_ctx: FLContext) -> Egress:
        if self.egress is None:
            self.egress = Egress(
                ledger=_run_folder(fl_ctx) / ledger.FILE,
                site=fl_ctx.get_identity_name(),
                job=str(fl_ctx.get_job_id()),
                job_name=job_name(fl_ctx),
            )
        return self.egress

    def _policy_facts(self, request: messages.Request) -> dict[str, Any]:
        """Return what a request wants of this site, as arguments of `Policy.admit`."""
        limits = (request.plan.get("limit"), self.args.settings.get("eval_limit"))
        return {
            "method": self.args.method,
            "protections": PROTECTIONS[request.protection].seals,
            "sites": len(request.roster),
            "rounds": max(request.plan.get("rounds", 0), request.round + 1) or None,
            "limit": min((limit for limit in limits if limit), default=None),  # 0 evaluates nothing
        }

    def _log_trace(self, error: Exception, fl_ctx: FLContext) -> None:
        """Append the full trace to the site's `worker.log`, which FLARE does not stream."""
        folder = _run_folder(fl_ctx) / "worker"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "worker.log").open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """End the worker when the run ends."""
        if event_type == EventType.END_RUN and self.worker is not None:
            self.worker.close()
            self.worker = None


def _run_folder(fl_ctx: FLContext) -> Path:
    """Return this site's folder of the running job."""
    return Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
