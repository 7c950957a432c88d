# SPDX-License-Identifier: Apache-2.0
"""FLARE without a network: the real controller, communicator, components and executors, in threads.

`Federation(root, ...)` builds one run; `run()` returns its record, `completed` and `failed` also assert how
it ended, `final` and `ledger` read what it left. Sites train a small learner (`fed_toy.ToyLearner`;
`learner=` names another subclass of `fed_learner.SmallLearner`), or, with `method=`, a real one from a
site.yaml in `<root>/<site>/local`. The fixture `federation` of conftest.py makes runs below the test's own
folder.

A hostile party is a function of (site, task, message), called in the site's own thread:
`mislead` with every message that the server sends (what it returns, if anything, reaches the site instead),
`tamper` with every reply of a site (what it returns reaches the server instead); the usual ones are in
`fed_tamper`.
Times are limits, not waits: a deadline passes without waiting with the fixture `clock` (fed_clock.py).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fed_learner import SmallLearner, builder
from fed_toy import ToyLearner
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medflare.core.run_record import RunRecord, read_record
from medflare.core.tensors import State
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import SiteConfig
from medflare.egress.policy import Policy
from medflare.egress.report import LedgerLine, read_ledger
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.controller import RoundsController
from medflare.federation.server.persistor import AdapterPersistor
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.server.run_state import load_state
from medflare.federation.site import executor as site_executor
from medflare.federation.site.executor import LearnerExecutor
from medflare.federation.site.policy import policy_of
from medflare.wire.durable import write_json
from medflare.worker import config as worker_config
from medflare.worker.config import WorkerConfig
from medflare.worker.thread_worker import ThreadWorker
from medflare.worker.workers import ProcessWorker, Worker

SITES = ("site-1", "site-2", "site-3")
TOY_WORKER = (sys.executable, str(Path(__file__).parent / "fed_toy_worker.py"))
Tamper = Callable[[str, str, Shareable], Shareable | None]


class ToyExecutor(LearnerExecutor):
    """The executor with a learner that is in no table; only a test's own allow-list names this class."""

    learner: type[SmallLearner] = ToyLearner

    @staticmethod
    def check_method(method: str) -> None:
        assert method == "toy"

    def make_worker(self, config: WorkerConfig, run_folder: Path) -> Worker:
        if self.args.worker == "thread":
            return ThreadWorker(config, builder(self.learner))
        return ProcessWorker(config, run_folder / "worker", command=TOY_WORKER)


class ToyRounds(RoundsController):
    """The controller with the toy learner as the server's own scorer."""

    learner: type[SmallLearner] = ToyLearner

    def make_worker(self, config: WorkerConfig, folder: Path) -> Worker:
        if self.args.scorer == "thread":
            return ThreadWorker(config, builder(self.learner))
        return ProcessWorker(config, folder, command=TOY_WORKER)


@dataclass
class FakeWorkspace:
    root: Path

    def get_root_dir(self) -> str:
        return str(self.root)

    def get_run_dir(self, job_id: str) -> str:
        return str(self.root / job_id)

    def get_site_config_dir(self) -> str:
        return str(self.root / "local")

    def get_app_config_dir(self, job_id: str) -> str:
        return str(self.root / job_id / "app" / "config")


class FakeEngine:
    """What controllers, communicators and executors ask of FLARE's engines."""

    def __init__(
        self, name: str, root: Path, components: dict[str, Any], clients: list[Client], job: str = "job"
    ) -> None:
        self.workspace, self.components, self.clients = FakeWorkspace(root), components, clients
        self.handlers: list[Any] = list(components.values())
        self.contexts = FLContextManager(
            engine=self, identity_name=name, job_id=job, public_stickers={}, private_stickers={}
        )

    def new_context(self) -> Any:
        return self.contexts.new_context()

    def get_workspace(self) -> FakeWorkspace:
        return self.workspace

    def get_component(self, name: str) -> Any:
        return self.components.get(name)

    def get_clients(self) -> list[Client]:
        return self.clients

    def fire_event(self, event: str, ctx: FLContext) -> None:
        for handler in list(self.handlers):
            handler.handle_event(event, ctx)

    def register_app_command(self, *args: Any, **kwargs: Any) -> None:
        pass

    def get_cell(self) -> None:
        return None


def write_app(workspace: FakeWorkspace, job: str, method: str, settings: dict[str, Any]) -> None:
    """Write the server's copy of the job, as far as the server reads it."""
    executor = {"path": "executor", "args": {"method": method, "settings": settings}}
    write_json(
        Path(workspace.get_app_config_dir(job)) / "config_fed_client.json",
        {"executors": [{"tasks": ["*"], "executor": executor}]},
    )


@dataclass
class Federation:
    """One run over sites with a small learner, or over real ones that have a site.yaml.

    Attributes:
        controller: changes to the arguments of the controller. rule: arguments of the aggregator.
        settings: of the method. dead: sites that never ask for a task.
        timeout: seconds after which the run is aborted.
        unchecked: sites send replies that nobody waits for; FLARE's client does not, a hostile one may.
        job: FLARE's id of it. resumes: the first job of the run that this one goes on with.
    """

    root: Path
    controller: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = SITES
    worker: str = "thread"
    tamper: Tamper | None = None
    mislead: Tamper | None = None
    dead: tuple[str, ...] = ()
    timeout: float = 240.0
    method: str = "toy"
    learner: type[SmallLearner] = ToyLearner
    rule: dict[str, Any] = field(default_factory=dict)
    flow_class: type[RoundsController] | None = None
    job: str = "job"
    resumes: str = ""
    unchecked: bool = False

    def __post_init__(self) -> None:
        defaults = {
            "job": "toy",
            "num_rounds": 2,
            "margin": 0.3,
            "straggler_timeout": 60.0,
            "uplink": "float32",
            "downlink": "float32",
            "scorer": "thread",
            "resumes": self.resumes,
        }
        flow, executor = (
            (ToyRounds, ToyExecutor) if self.method == "toy" else (RoundsController, LearnerExecutor)
        )
        self.flow = (self.flow_class or flow)(**{**defaults, **self.controller})
        self.aggregator = ValidatingAggregator(**self.rule)
        components = {
            "aggregator": self.aggregator,
            "persistor": AdapterPersistor(),
            "progress": ProgressReporter(tensorboard=False),
        }
        self.clients = [Client(name, token=name) for name in self.sites]
        self.engine = FakeEngine("server", self.root / "server", components, self.clients, self.job)
        self.executors = {
            name: executor(
                method=self.method,
                settings=self.settings,
                worker=self.worker,
                protection=self.controller.get("protection", "none"),
                resumes=self.resumes,
            )
            for name in self.sites
        }
        write_app(self.engine.workspace, self.job, self.method, self.settings)
        for part in (self.flow, *self.executors.values()):
            part.learner = self.learner
        self.fatal: list[str] = []
        self.abort, self.done = Signal(), threading.Event()

    @property
    def folder(self) -> Path:
        return self.root / "server" / self.job

    @property
    def state(self) -> Path:
        """The folder of the server's states."""
        return self.root / "server" / "runs" / (self.resumes or self.job) / "state"

    def site_folder(self, site: str) -> Path:
        return self.root / site / self.job

    def record(self) -> RunRecord:
        return read_record(self.folder)

    def change(self, **args: Any) -> None:
        """Other arguments of the controller, from the next exchange on."""
        vars(self.flow.args).update(args)  # in place: every part of the run holds these settings

    def run(self) -> RunRecord:
        comm = WFCommServer(task_check_period=0.01)
        self.flow.set_communicator(comm)
        self.engine.handlers = [self, self.flow, comm, *self.engine.components.values()]
        with self.engine.new_context() as ctx:
            self.engine.fire_event(EventType.START_RUN, ctx)
            comm.initialize_run(ctx)
            self.flow.initialize(ctx)
        threads = [
            threading.Thread(target=self._client, args=(client, comm), daemon=True)
            for client in self.clients
            if client.name not in self.dead
        ]
        for thread in threads:
            thread.start()
        guard = threading.Timer(self.timeout, lambda: self.abort.trigger(True))
        guard.daemon = True
        guard.start()
        with self.engine.new_context() as ctx:
            self.flow.control_flow(self.abort, ctx)
        with self.engine.new_context() as ctx:
            comm.finalize_run(ctx)
        self.done.set()
        guard.cancel()
        for executor in self.executors.values():
            executor.close()
        return self.record()

    def handle_event(self, event: str, ctx: FLContext) -> None:
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.fatal.append(str(ctx.get_prop(FLContextKey.EVENT_DATA)))

    def _client(self, client: Client, comm: WFCommServer) -> None:
        """What FLARE's client runner does: ask, execute, submit."""
        executor = self.executors[client.name]
        engine = FakeEngine(client.name, self.root / client.name, {}, [], self.job)
        while not self.done.is_set():
            with self.engine.new_context() as ctx:
                peer = FLContext()
                peer.set_prop(ReservedKey.IDENTITY_NAME, client.name, private=False)
                ctx.set_peer_context(peer)
                self.engine.fire_event(EventType.BEFORE_PROCESS_TASK_REQUEST, ctx)
                name, task_id, message = comm.process_task_request(client, ctx)
            if not name:
                time.sleep(0.005)
                continue
            if self.mislead is not None:
                message = self.mislead(client.name, name, message) or message
            with engine.new_context() as ctx:
                ctx.set_peer_context(FLContext())
                reply = self._execute(executor, name, message, ctx)
            if self.tamper is not None:
                reply = self.tamper(client.name, name, reply) or reply
            with self.engine.new_context() as ctx:
                if comm.process_task_check(task_id, ctx) is None and not self.unchecked:
                    continue  # the server waits no longer, and FLARE's client throws the result away
                comm.process_submission(client, name, task_id, reply, ctx)

    def _execute(self, executor: Any, name: str, message: Shareable, ctx: FLContext) -> Shareable:
        try:
            return executor.execute(name, message, ctx, self.abort)
        except Exception:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


Make = Callable[..., Federation]
"""What the fixtures of conftest.py give: options -> a run that is not started."""


def completed(run: Federation) -> RunRecord:
    """Runs it; the record of a run that came to its end."""
    record = run.run()
    assert record.status == "completed", record.reason
    return record


def failed(run: Federation, *reasons: str) -> RunRecord:
    """Runs it; the record of a run that failed for a reason with all these words."""
    record = run.run()
    assert record.status == "failed"
    assert all(reason in record.reason for reason in reasons), record.reason
    return record


def final(run: Federation) -> State:
    """The shared tensors after the last round."""
    return load_state(run.state).shared


def accepted(record: RunRecord) -> list[list[str]]:
    """Whose updates counted, round by round."""
    return [sorted(entry.accepted) for entry in record.rounds]


def ledger(run: Federation, site: str, *tasks: str) -> list[LedgerLine]:
    """The lines of a site's ledger, which is consistent, of these tasks or of all."""
    file = read_ledger(run.site_folder(site) / "egress.jsonl")
    assert file.problems == []
    return [line for line in file.lines if not tasks or line.task in tasks]


def events(run: Federation, *phases: str) -> list[dict[str, Any]]:
    """What the run told of its progress, of these phases."""
    lines = (run.folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["phase"] in phases]


def toy_site_settings(config: WorkerConfig) -> SiteConfig:
    """The settings of a toy site, which has no site.yaml: a name and no cohort."""
    return SiteConfig.model_construct(name=config.site, cohort=())


def allow(monkeypatch: Any, **rules: Any) -> None:
    """All sites have a policy of these rules."""
    policy = Policy(rules=PolicyConfig(**rules))
    monkeypatch.setattr(site_executor, "policy_of", lambda config, before: policy)


def toy_policy(config: WorkerConfig, before: Policy) -> Policy:
    """The policy of a toy site without a site.yaml: rule `drfa` may probe it."""
    if Path(config.site_file).exists():
        return policy_of(config, before)
    return Policy(rules=PolicyConfig(train_losses=True))


def use_toy_sites(monkeypatch: Any) -> None:
    """Toy sites have no site.yaml."""
    monkeypatch.setattr(site_executor, "policy_of", toy_policy)
    monkeypatch.setattr(worker_config, "load_site_settings", toy_site_settings)
