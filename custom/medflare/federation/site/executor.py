# SPDX-License-Identifier: Apache-2.0
"""The site's side of a job: a thin supervisor between FLARE, the worker that learns, and the egress chain."""

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
from medflare.federation.protections import SEAL, Protection
from medflare.federation.protections.base import SECURE, SiteProtection, exact
from medflare.federation.protections.sides import site_side
from medflare.federation.site.policy import job_name, policy_of
from medflare.federation.site.worker import ProcessWorker, ThreadWorker, Worker
from medflare.federation.site.worker_config import WorkerConfig, residual_file
from medflare.learners.registry import get_method
from medflare.wire.compression import CODECS, ErrorFeedback, compress
from medflare.wire.spec_codec import spec_from_json
from medflare.wire.task_messages import TaskRequest, TaskResult

SITE_FILE = "site.yaml"


class ExecutorSettings(Settings):
    """`args` of the executor in config_fed_client.json.

    `settings` belongs to the method and is validated by the method's own settings class at the site.
    """

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    protection: Protection = "none"
    """As the controller's: a server that asks for another one than the job was submitted with is refused."""
    worker: Literal["process", "thread"] = "process"
    deadline: float = 86400.0
    """The site's own limit for one task in seconds; the server's limit counts too, the smaller one wins."""


class LearnerExecutor(Executor):
    """Passes tasks to the worker and its answers through the egress chain; never lets an error out.

    An exception that reached FLARE would put its text into logs that may be streamed to the server, and a
    RuntimeError would abort the job.
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
        """A job names a method of the table and nothing else."""
        get_method(method)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        if task_name not in messages.TASKS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        round_number = -1
        try:
            request = messages.read_request(shareable)
            round_number = request.round
            return self._answer(request, fl_ctx, abort_signal)
        except Exception as error:
            failure = failure_of(error)
            self._log_trace(error, fl_ctx)
            self._door(fl_ctx).failed(task_name, round_number, failure)
            self.logger.warning(f"{task_name} of round {round_number} failed with E{int(failure.code)}")
            return messages.failure_reply(failure, round_number)

    def _answer(self, request: messages.Request, fl_ctx: FLContext, abort: Signal) -> Shareable:
        """One task through worker and egress."""
        egress = self._egress(request, fl_ctx)
        if request.protection != self.args.protection:
            raise ConfigError(
                f"the server asks for protection '{request.protection}', and this job came to this site with "
                f"'{self.args.protection}'. Both configurations must say the same; nothing was done."
            )
        others = self._partners(request, fl_ctx)
        egress.admit(request.task, request.round, partners=others, **self._asked(request))
        protection = self._protection(request, fl_ctx)
        if request.task in messages.STEPS:
            facts = {SECURE: protection.answer(request)}
            sent = egress.send(request.task, request.round, TaskResult(facts, {}))
            return messages.reply(request, sent.facts, sent.tensors)
        work = self._work(replace(request, tensors=protection.opened(request)), fl_ctx)
        self.worker = self.worker or self.make_worker(
            self._worker_config(request, fl_ctx), _run_folder(fl_ctx)
        )
        limit = min(self.args.deadline, request.deadline)
        result: TaskResult = self.worker.run_task(work, limit, lambda: bool(abort.triggered))
        if request.task == messages.PREPARE:
            shared, sums = (spec_from_json(result.facts[key]) for key in ("shared", "sums"))
            profiles = [spec_from_json(spec) for spec in result.facts.get("profiles", {}).values()]
            egress.declare(shared, sums, profiles)
            protection.declare(shared, sums, result.facts["describe"])
            protection.declare_sums(profiles)
            result.facts["describe"]["protection"] = protection.facts()
            result.facts.update(method=self.args.method, settings=self.args.settings)
        compress, seal = self._compress(request, result, fl_ctx), None
        if request.task == messages.FIT:
            seal = protection.seal(request, result)
        elif request.task == messages.FINISH:
            protection.export(request, _run_folder(fl_ctx) / "result")
        sent = egress.send(request.task, request.round, result, exact if seal else compress, seal)
        return messages.reply(request, sent.facts, sent.tensors)

    def _protection(self, request: messages.Request, fl_ctx: FLContext) -> SiteProtection:
        if self.protection is None:
            root = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
            policy = self._egress(request, fl_ctx).policy
            memory = Path(self._worker_config(request, fl_ctx).state_folder)
            name = fl_ctx.get_identity_name()
            self.protection = site_side(self.args.protection, name, root, policy, memory)
        self.protection.obey(self._door(fl_ctx).policy)
        return self.protection

    def _partners(self, request: messages.Request, fl_ctx: FLContext) -> list[str]:
        """The other sites of the run."""
        return [name for name in request.roster if name != fl_ctx.get_identity_name()]

    def _work(self, request: messages.Request, fl_ctx: FLContext) -> TaskRequest:
        """The worker's task, with what only this site knows: its place in the roster, its folders."""
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
        """The worker the job's setting asks for."""
        if self.args.worker == "thread":
            return ThreadWorker(config)
        return ProcessWorker(config, run_folder / "worker")

    def _compress(self, request: messages.Request, result: TaskResult, fl_ctx: FLContext) -> Compress:
        """How this reply is made smaller; updates with feedback, except those that count nowhere: a canary's
        and one of no examples."""
        exact = CODECS[request.uplink].bits is None
        uncounted = request.options.get("canary") or not result.facts.get("examples")
        if exact or request.task != messages.FIT or uncounted:
            return compress
        config = self._worker_config(request, fl_ctx)
        return ErrorFeedback(residual_file(config), request.run_id).compress

    def _egress(self, request: messages.Request, fl_ctx: FLContext) -> Egress:
        """The site's door for this request, with the rules in force at this moment."""
        egress = self._door(fl_ctx)
        egress.uplink = request.uplink
        egress.policy = policy_of(self._worker_config(request, fl_ctx), egress.policy)
        return egress

    def _door(self, fl_ctx: FLContext) -> Egress:
        if self.egress is None:
            self.egress = Egress(
                ledger=_run_folder(fl_ctx) / ledger.FILE,
                site=fl_ctx.get_identity_name(),
                job=str(fl_ctx.get_job_id()),
                job_name=job_name(fl_ctx),
            )
        return self.egress

    def _asked(self, request: messages.Request) -> dict[str, Any]:
        """What a request asks of this site, for its policy."""
        limits = (request.plan.get("limit"), self.args.settings.get("eval_limit"))
        return {
            "method": self.args.method,
            "protections": [SEAL[request.protection]] if request.protection in SEAL else [],
            "sites": len(request.roster),
            "rounds": max(request.plan.get("rounds", 0), request.round + 1) or None,
            "limit": min((limit for limit in limits if limit), default=None),  # 0 evaluates nothing
        }

    def _log_trace(self, error: Exception, fl_ctx: FLContext) -> None:
        """The full trace, into the site's own file, which FLARE does not stream."""
        folder = _run_folder(fl_ctx) / "worker"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "worker.log").open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.END_RUN and self.worker is not None:
            self.worker.close()
            self.worker = None


def site_file(root: Path, local: Path) -> Path:
    """The site's own site.yaml.

    The simulator copies one `local/` to every site; then the original counts, so that relative folders
    mean the same for all of them.
    """
    own, shared = local / SITE_FILE, root.parent / "local" / SITE_FILE
    if own.exists() and shared.exists() and own.read_bytes() == shared.read_bytes():
        return shared
    return own


def _run_folder(fl_ctx: FLContext) -> Path:
    """This site's folder of the running job."""
    return Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
