# SPDX-License-Identifier: Apache-2.0
"""The process of `nvflare simulator`: started, followed, ended, and started again where clients were lost.

It starts a process per client and round unless every client has its own thread.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from medflare.core.errors import RunError
from medflare.core.stop_signals import StopSignal
from medflare.recipes.progress_view import Follower
from medflare.worker import fork_server

SERVER_FOLDER = Path("server/simulate_job")
"""Folder of the server's run below the simulator's workspace; a site's is `<site>/simulate_job`."""
STARTS = 3
"""Most starts of a simulator that loses clients before anything happens."""
GUARD = (sys.executable, "-P", "-m", "medflare.recipes.process_guard")
FORK_SERVER = (sys.executable, "-P", "-m", "medflare.worker.fork_server")
LESS_MEMORY = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "MALLOC_ARENA_MAX": "2"}
"""Texts of every length make oneDNN keep a compiled product for each shape, a thousand by default: a worker
of the demo grew to 2.2 GB by round 5, and to 1.1 GB with these (`benchmarks/run_memory.py`, 2026-11-25)."""
_LOST = re.compile(r"Communication error with client (\S+):")
_UNREACHED = "Failed to create connection to the child process"


def launch(
    job_folder: Path,
    workspace: Path,
    sites: Sequence[str],
    threads: int | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    timeout: float | None = None,
    discard: Path | None = None,
    method: str | None = None,
) -> None:
    """Start `nvflare simulator` with a thread for every client and wait for it to end.

    Its output goes to `<workspace>.log`, beside the workspace, because it wipes the workspace first. It looks
    for free ports before its clients take them: where another program was quicker, clients are lost as they
    start, and the others would wait for hours. Then it is started again.

    Args:
        threads: of the simulator; default one for every client.
        on_event: called with each line of the server's progress.
        timeout: seconds.
        discard: states of a start that came to nothing, which the next one must not find; None where the run
            goes on with an earlier one.
        method: whose workers are forked from one process; None starts each as a program.

    Raises:
        RunError: it takes more than `timeout` seconds, or loses clients in each of STARTS starts.
        StopSignal: a signal to its processes ended it.
    """
    for start in range(1, STARTS + 1):
        if discard is not None:
            shutil.rmtree(discard, ignore_errors=True)
        lost = _run_once(job_folder, workspace, sites, threads, on_event, timeout, method)
        if not lost:
            return
        if start == STARTS:
            raise RunError(
                f"the simulator lost {', '.join(lost)} as it started, {STARTS} times: its processes died, or "
                f"other programs took their ports. See the log, and run it again. Log: {log_path(workspace)}"
            )


def _run_once(
    job_folder: Path,
    workspace: Path,
    sites: Sequence[str],
    threads: int | None,
    on_event: Callable[[dict[str, Any]], None] | None,
    timeout: float | None,
    method: str | None,
) -> list[str]:
    """Start it once and wait; return the clients that were lost before anything happened, then at once."""
    shutil.rmtree(workspace / "server", ignore_errors=True)
    follower = Follower(workspace / SERVER_FOLDER / "progress.jsonl")
    until, started = time.monotonic() + timeout if timeout else None, False
    command = simulator_command(job_folder, workspace, sites, threads or len(sites))
    with _forking(command, method) as forking, _guarded(forking, log_path(workspace)) as process:
        while process.poll() is None:
            started = _forward_events(follower, on_event) or started
            if not started and (lost := lost_clients(log_path(workspace))):
                return lost
            if until is not None and time.monotonic() > until:
                raise RunError(f"the simulator took more than {timeout:g} s. Log: {log_path(workspace)}")
            time.sleep(0.2)
        _forward_events(follower, on_event)
        if process.returncode < 0:  # a service manager signals all processes of a service, the guard first
            raise StopSignal(-process.returncode)
    return []


def simulator_command(job_folder: Path, workspace: Path, sites: Sequence[str], threads: int) -> list[str]:
    """Return the command that runs a job folder in FLARE's simulator."""
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job_folder), "-w", str(workspace)]
    return [*command, "-c", ",".join(sites), "-t", str(threads)]


@contextmanager
def _forking(command: Sequence[str], method: str | None) -> Iterator[Sequence[str]]:
    """Yield the command under a fork server of the method's workers, or alone where there can be none."""
    if method is None or not fork_server.usable():
        yield command
        return
    with tempfile.TemporaryDirectory(prefix="medflare-") as folder:  # a socket's path must be short
        yield [*FORK_SERVER, str(Path(folder) / "workers"), method, *command]


@contextmanager
def _guarded(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under the guard; every process that came of it has ended when the context is left."""
    env = {**LESS_MEMORY, **os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    env.setdefault("OMP_NUM_THREADS", "1")
    child_end, parent_end = os.pipe()  # the parent end closes with this process, however that ends
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*GUARD, str(child_end), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                pass_fds=(child_end,),
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
    finally:
        os.close(child_end)
        os.close(parent_end)


def _forward_events(follower: Follower, on_event: Callable[[dict[str, Any]], None] | None) -> bool:
    """Pass on new events; return whether there were any."""
    events = list(follower.new_events())
    for event in events:
        if on_event is not None:
            on_event(event)
    return bool(events)


def lost_clients(log: Path) -> list[str]:
    """Return the clients that the simulator could not reach, by its log, which does not name all of them."""
    text = log.read_text(errors="replace")
    return sorted(set(_LOST.findall(text))) or ["a client"] * (_UNREACHED in text)


def log_path(workspace: Path) -> Path:
    """Return the file of the simulator's own output."""
    return workspace.with_name(workspace.name + ".log")
