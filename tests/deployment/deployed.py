# SPDX-License-Identifier: Apache-2.0
"""A real federation on loopback: provisioned kits, a server and sites in processes of their own, mTLS."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from deployed_programs import LONG, bare_path, environment, free_port, run, wait_until
from nvflare.fuel.flare_api.api_spec import InvalidTarget, JobNotFound
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from medflare.core.run_record import RunRecord, read_record
from medflare.deployment import hardening
from medflare.recipes.admin_session import wait_for_uploads
from medflare.wire.durable import read_json, write_json

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "provisioning" / "project.yml"
SERVER, SITES = "flserver", ("site-1", "site-2", "site-3")
ADMIN, LEAD = "admin@coordinator.org", "lead@hospital-a.org"
LOGS = ("console.log", "error_log.txt", "*-*/error_log.txt", "*-*/worker/worker.log")


def provision(folder: Path, project: Path = PROJECT, name: str | None = None) -> Path:
    """Hardened startup kits of the project on a free port of this machine; returns their folder."""
    document = yaml.safe_load(project.read_text())
    document["name"] = name or document["name"]
    for participant in document["participants"]:
        if participant["type"] == "server":
            participant |= {"fed_learn_port": free_port(), "default_host": "localhost"}
    folder.mkdir(parents=True)
    (folder / "project.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    run("nvflare", "provision", "-p", str(folder / "project.yml"), "-w", str(folder / "kits"))
    hardening.harden(folder / "kits")
    kits = folder / "kits" / document["name"] / "prod_00"
    notice_soon(kits / SERVER / "local" / "resources.json")
    return kits


def notice_soon(resources: Path) -> None:
    """A server that counts a silent site as gone after the shortest time that hardening leaves alone."""
    content = read_json(resources)
    content["servers"][0]["heart_beat_timeout"] = 30
    write_json(resources, content)


@dataclass
class Federation:
    """Server, sites and admins of one project.

    Attributes:
        kits: folder with one kit for each participant.
        processes: name -> the parent process that its start script became.
        sessions: user -> an open session of the Python API; a login takes more than a second.
        environments: name -> further variables of its processes.
        seconds: what took how long, for the report.
    """

    kits: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    # ---- processes ---------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Starts kits as `startup/sub_start.sh --once` does, whose process is FLARE's own afterwards."""
        for name in names:
            kit = self.kits / name
            with (kit / "console.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    ["bash", str(kit / "startup/sub_start.sh"), "--once"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment()
                    | {"PATH": bare_path(self.kits / "bin")}
                    | self.environments.get(name, {}),
                    cwd=kit,
                    start_new_session=True,
                )

    def wait_ready(self, *sites: str, timeout: float = LONG) -> None:
        """Waits until the server knows all these sites."""
        started = time.monotonic()

        def there() -> bool:
            with contextlib.suppress(Exception), self.session() as session:
                return set(sites) <= {client.name for client in session.get_system_info().client_info}
            return False

        wait_until(f"{', '.join(sites)} at the server", there, timeout, every=0.5)
        self.seconds[f"ready {len(sites)}"] = time.monotonic() - started

    def tree(self, name: str) -> list[psutil.Process]:
        """The process of a participant and everything below it, job processes and workers included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.processes[name].pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def job_process(self, name: str) -> psutil.Process:
        """FLARE's process of the running job at a site."""
        return self._below(name, "runner_process" if name == SERVER else "worker_process")

    def worker(self, name: str) -> psutil.Process:
        """The child in which a site learns."""
        return self._below(name, "medflare.worker.main")

    def _below(self, name: str, word: str) -> psutil.Process:
        def found() -> psutil.Process | None:
            for process in self.tree(name)[1:]:
                with contextlib.suppress(psutil.Error):
                    if any(word in part for part in process.cmdline()):
                        return process
            return None

        process: psutil.Process = wait_until(f"a process {word} at {name}", found, LONG, every=0.05)
        return process

    def kill(self, name: str) -> None:
        """A whole site is gone at once, without a word to anybody."""
        tree = self.tree(name)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.processes.pop(name).wait()

    def kill_parent(self, name: str) -> None:
        """FLARE's process of a participant is gone; what it had started is left behind."""
        parent = self.processes.pop(name)
        parent.kill()
        parent.wait()
        if name == SERVER:
            for session in self.sessions.values():
                with contextlib.suppress(Exception):
                    session.api.close()
            self.sessions.clear()

    @contextlib.contextmanager
    def joined(self, name: str) -> Iterator[str]:
        """One more site for a while, which may be killed in it; its kit's site.yaml is ready."""
        self.start(name)
        try:
            self.wait_ready(name)
            yield name
        finally:
            if name in self.processes:
                self.kill(name)
            with self.session() as session, contextlib.suppress(InvalidTarget):
                session.remove_client(name)  # the server may have noticed by itself

    def stop(self) -> None:
        """Shuts the system down as an admin does, then ends what is left of the processes started here."""
        trees = {process for name in self.processes for process in self.tree(name)}
        started = time.monotonic()
        with contextlib.suppress(Exception), self.session() as session:
            session.shutdown_system()
            psutil.wait_procs(trees, timeout=20)
        self.seconds["shutdown"] = time.monotonic() - started
        self.end(trees)

    def end(self, more: set[psutil.Process] | None = None) -> None:
        """Ends every process started here, and those in `more`, at once, and closes all sessions."""
        trees = {process for name in self.processes for process in self.tree(name)} | (more or set())
        for process in trees:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for session in self.sessions.values():
            with contextlib.suppress(Exception):
                session.api.close()  # without a word to the server, which is gone

    # ---- the admin ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def session(self, user: str = ADMIN, timeout: float = 30.0) -> Iterator[Session]:
        """The user's open session of the Python API; `end` closes it, else Python would not exit."""
        if user not in self.sessions or self.sessions[user].api.closed:
            wait_for_uploads()
            with contextlib.redirect_stdout(io.StringIO()):
                self.sessions[user] = new_secure_session(user, str(self.kits / user), timeout=timeout)
            self.sessions[user].set_timeout(timeout)
        yield self.sessions[user]

    def submit(self, job: Path, user: str = ADMIN) -> str:
        """The id of a job submitted through the Python API."""
        with self.session(user) as session:
            return str(session.submit_job(str(job)))

    def command(self, *words: str, user: str = ADMIN) -> dict[str, Any]:
        """What `nvflare <words>` answers an admin, as data."""
        kit = ("--startup-kit", str(self.kits / user))
        done = run("nvflare", "--format", "json", "--connect-timeout", "60", *words, *kit)
        data: dict[str, Any] = json.loads(done.stdout)["data"]
        return data

    def console(self, *lines: str, user: str = ADMIN) -> str:
        """What the interactive console prints for these lines."""
        typed = "".join(f"{line}\n" for line in (user, *lines, "bye"))
        return run("bash", str(self.kits / user / "startup/fl_admin.sh"), stdin=typed).stdout

    def state(self, job_id: str) -> str:
        """FLARE's word on a job, for instance RUNNING or FINISHED:COMPLETED."""
        with self.session() as session:
            return str(session.get_job_meta(job_id)["status"])

    def wait(self, job_id: str, timeout: float = LONG) -> str:
        """FLARE's last word on a job."""
        started = time.monotonic()
        with self.session() as session:

            def ended() -> str:
                try:
                    status = str(session.get_job_meta(job_id)["status"])
                except JobNotFound:  # FLARE writes the job's file anew at this moment
                    return ""
                return status if status.startswith(("FINISHED", "FAILED", "ABANDONED")) else ""

            status: str = wait_until(f"the end of job {job_id}", ended, timeout, every=0.25)
        self.seconds[f"job {job_id[:8]}"] = time.monotonic() - started
        return status

    def download(self, job_id: str, folder: Path) -> Path:
        """The server's run folder of a finished job, as an admin gets it."""
        with self.session() as session:
            return Path(session.download_job_result(job_id, str(folder))) / "workspace"

    def complete(self, job: Path, folder: Path, timeout: float = LONG) -> Finished:
        """Submits, waits and downloads."""
        job_id = self.submit(job)
        return self.finished(job_id, folder, timeout)

    def finished(self, job_id: str, folder: Path, timeout: float = LONG) -> Finished:
        """Waits for a submitted job and downloads it."""
        state = self.wait(job_id, timeout)
        return Finished(job_id, state, self.download(job_id, folder))

    # ---- looking at it -----------------------------------------------------------------------------------

    def run_folder(self, name: str, job_id: str) -> Path:
        """A participant's own folder of a job."""
        return self.kits / name / job_id

    def progress(self, job_id: str) -> list[dict[str, Any]]:
        """The events of a running job so far."""
        path = self.run_folder(SERVER, job_id) / "progress.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_event(self, job_id: str, timeout: float = LONG, **facts: Any) -> dict[str, Any]:
        """The first event of a job with all these facts, for instance phase="round", round=1."""

        def found() -> dict[str, Any] | None:
            return next((e for e in self.progress(job_id) if facts.items() <= e.items()), None)

        event: dict[str, Any] = wait_until(f"event {facts}", found, timeout, every=0.02)
        return event

    def wait_training(self, site: str, job_id: str) -> None:
        """Waits until the site's worker has tensors to work on, as it has while it trains."""
        folder = self.run_folder(site, job_id) / "worker"
        wait_until(f"{site} to train", lambda: any(folder.glob("to-*.safetensors")), LONG, every=0.005)

    def log(self, name: str) -> str:
        """Everything a participant has said in its own folder."""
        kit = self.kits / name
        files = [file for pattern in LOGS for file in kit.glob(pattern)]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(set(files)))

    def logs(self, last: int = 25) -> str:
        """The last lines of everyone, for a test that failed."""
        tails = []
        for name in (SERVER, *SITES):
            lines = [
                line
                for line in self.log(name).splitlines()
                if not re.search(r" - (DEBUG|INFO) - |Late stream error", line)
            ]
            tails.append(f"---- {name}\n" + "\n".join(lines[-last:]))
        return "\n".join(tails)


@dataclass(frozen=True)
class Finished:
    """A job that ended: FLARE's last word and what the admin downloaded."""

    job_id: str
    state: str
    folder: Path

    @property
    def record(self) -> RunRecord:
        """The run record in the download."""
        return read_record(self.folder)
