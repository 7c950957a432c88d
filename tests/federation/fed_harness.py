# SPDX-License-Identifier: Apache-2.0
"""FLARE without a network: the real controller, communicator, components and executors, in threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fed_toy import build_toy
from nvflare.apis.client import Client
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medflare.core.run_record import RunRecord, read_record
from medflare.core.tensors import State
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.controller import RoundsController
from medflare.federation.server.persistor import AdapterPersistor
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.server.run_state import load_state
from medflare.federation.site import worker_config
from medflare.federation.site.executor import LearnerExecutor
from medflare.federation.site.worker import ProcessWorker, ThreadWorker, Worker
from medflare.federation.site.worker_config import WorkerConfig

SITES = ("site-1", "site-2", "site-3")
TOY_WORKER = (sys.executable, str(Path(__file__).parent / "fed_toy_worker.py"))
Mislead = Callable[[str, str, Shareable], Shareable | None]


class ToyExecutor(LearnerExecutor):
    """The executor with a learner that is in no table; only a test's own allow-list names this class."""

    @staticmethod
    def check_method(method: str) -> None:
        assert method == "toy"

    def make_worker(self, config: WorkerConfig, run_folder: Path) -> Worker:
        if self.args.worker == "thread":
            return ThreadWorker(config, build_toy)
        return ProcessWorker(config, run_folder / "worker", command=TOY_WORKER)


class ToyRounds(RoundsController):
    """The controller with the toy learner as the server's own scorer."""

    def make_worker(self, config: WorkerConfig, folder: Path) -> Worker:
        if self.args.scorer == "thread":
            return ThreadWorker(config, build_toy)
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


class FakeEngine:
    """What controllers, communicators and executors ask of FLARE's engines."""

    def __init__(self, name: str, root: Path, components: dict[str, Any], clients: list[Client]) -> None:
        self.workspace, self.components, self.clients = FakeWorkspace(root), components, clients
        self.handlers: list[Any] = list(components.values())
        self.contexts = FLContextManager(
            engine=self, identity_name=name, job_id="job", public_stickers={}, private_stickers={}
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


@dataclass
class Federation:
    """One run over toy sites, or over real ones that have a site.yaml; `run` returns the record."""

    root: Path
    controller: dict[str, Any] = field(default_factory=dict)
    toy: dict[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = SITES
    worker: str = "thread"
    tamper: Any = None
    mislead: Any = None
    dead: tuple[str, ...] = ()
    timeout: float = 240.0
    method: str = "toy"
    rule: dict[str, Any] = field(default_factory=dict)
    flow_class: type[RoundsController] | None = None

    def __post_init__(self) -> None:
        defaults = {
            "job": "toy",
            "num_rounds": 2,
            "margin": 0.3,
            "straggler_timeout": 60.0,
            "uplink": "float32",
            "downlink": "float32",
            "scorer": "thread",
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
        self.engine = FakeEngine("server", self.root / "server", components, self.clients)
        self.executors = {
            name: executor(
                method=self.method,
                settings=self.toy,
                worker=self.worker,
                protection=self.controller.get("protection", "none"),
            )
            for name in self.sites
        }
        self.fatal: list[str] = []
        self.abort, self.done = Signal(), threading.Event()

    @property
    def folder(self) -> Path:
        return self.root / "server" / "job"

    def site_folder(self, site: str) -> Path:
        return self.root / site / "job"

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
            if executor.worker is not None:
                executor.worker.close()
        return self.record()

    def handle_event(self, event: str, ctx: FLContext) -> None:
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.fatal.append(str(ctx.get_prop(FLContextKey.EVENT_DATA)))

    def _client(self, client: Client, comm: WFCommServer) -> None:
        """What FLARE's client runner does: ask, execute, submit."""
        executor = self.executors[client.name]
        engine = FakeEngine(client.name, self.root / client.name, {}, [])
        while not self.done.is_set():
            with self.engine.new_context() as ctx:
                peer = FLContext()
                peer.set_prop(ReservedKey.IDENTITY_NAME, client.name, private=False)
                ctx.set_peer_context(peer)
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
                comm.process_submission(client, name, task_id, reply, ctx)

    def _execute(self, executor: Any, name: str, message: Shareable, ctx: FLContext) -> Shareable:
        try:
            return executor.execute(name, message, ctx, self.abort)
        except Exception:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


def changed(task: str, change: Callable[[dict[str, Any], dict[str, Any]], None], victim: str) -> Mislead:
    """One site is sent another message than the others."""

    def mislead(site: str, name: str, message: Shareable) -> Shareable | None:
        if (site, name) != (victim, task):
            return None
        dxo = from_shareable(message)
        dxo.data = {key: value.clone() for key, value in dxo.data.items()}
        dxo.meta = {**dxo.meta, "medflare_request": dict(dxo.meta["medflare_request"])}
        change(dxo.data, dxo.meta["medflare_request"])
        return dxo.to_shareable()

    return mislead


def completed(run: Federation) -> RunRecord:
    """Runs it; the record of a run that came to its end."""
    record = run.run()
    assert record.status == "completed", record.reason
    return record


def final(run: Federation) -> State:
    """The shared tensors after the last round."""
    return load_state(run.folder / "state").shared


def use_site_names(monkeypatch: Any) -> None:
    """Toy sites have no site.yaml: the name stands in for the settings."""
    monkeypatch.setattr(worker_config, "load_site_settings", lambda config: config.site)
