# SPDX-License-Identifier: Apache-2.0
"""The process of `nvflare simulator`: started, followed, ended, and started again where clients were lost.

It starts a process per client and round unless every client has its own thread.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError, RunError
from medflare.core.file_names import is_split_by_flare
from medflare.core.stop_signals import StopSignal
from medflare.recipes.progress_view import Follower
from medflare.wire.memory import LESS_MEMORY
from medflare.worker import fork_server

SERVER_FOLDER = Path("server/simulate_job")
"""Folder of the server's run below the simulator's workspace; a site's is `<site>/simulate_job`."""
STARTS = 3
"""Most starts of a simulator that loses clients before anything happens."""
GUARD = (sys.executable, "-P", "-m", "medflare.recipes.process_guard")
FORKED = (sys.executable, "-P", "-m", "medflare.recipes.forked_simulator")
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
        method: whose workers, and FLARE's processes, are forked from one; None starts each as a program.

    Raises:
        ConfigError: its processes cannot be forked here, and FLARE would split the workspace's path.
        RunError: it takes more than `timeout` seconds, or loses clients in each of STARTS starts.
        StopSignal: a signal to its processes ended it.
    """
    if not _forks(method) and is_split_by_flare(workspace):
        raise ConfigError(
            f"{workspace}: on this machine FLARE's simulator cannot work in a folder whose path has a space, "
            "a quote or a backslash. Name another one with --workspace."
        )
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
    with _started(command, method, log_path(workspace)) as process:
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


class GuardedProcess:
    """A command under the guard; every process that came of it has ended when it is closed.

    Args:
        output: descriptor of its output; None for nowhere.
        takes_input: whether its standard input is a pipe.
    """

    def __init__(self, command: Sequence[str], output: int | None, takes_input: bool = False) -> None:
        env = {**LESS_MEMORY, **os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        env.setdefault("OMP_NUM_THREADS", "1")
        child_end, self._parent_end = os.pipe()  # ours closes with this process, however that ends
        try:
            self.process = subprocess.Popen(
                [*GUARD, str(child_end), *command],
                stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if output is None else output,
                stderr=subprocess.DEVNULL if output is None else output,
                env=env,
                pass_fds=(child_end,),
                start_new_session=True,
            )
        finally:
            os.close(child_end)

    def close(self) -> None:
        """End it and all that came of it."""
        self.process.terminate()
        self.process.wait()
        os.close(self._parent_end)


class ForkingProcess(GuardedProcess):
    """`forked_simulator`, which imports what a run needs before it is told what to run."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="medflare-")  # a socket's path must be short
        super().__init__([*FORKED, self._folder.name], None, takes_input=True)

    def order(self, method: str, command: Sequence[str], log: Path) -> None:
        """Let it run a command of Python; its output is added to a log."""
        order = {"method": method, "module": command[2], "arguments": command[3:], "log": str(log)}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as channel:  # it has ended, which is seen next
            channel.write((json.dumps(order) + "\n").encode())

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


_waiting: list[ForkingProcess] = []
"""The one that `starting_early` started, until a run takes it."""


@contextmanager
def starting_early() -> Iterator[None]:
    """Let what is started in any case import its modules beside this process, which imports its own."""
    if fork_server.usable():
        _waiting.append(ForkingProcess())
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().close()


def _forks(method: str | None) -> bool:
    """Return whether workers and FLARE's processes are forked from one."""
    return method is not None and fork_server.usable()


@contextmanager
def _started(command: Sequence[str], method: str | None, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, its processes forked from one where that can be; all have ended when it is left."""
    guarded: GuardedProcess
    with log.open("wb") as output:
        if not _forks(method):
            guarded = GuardedProcess(command, output.fileno())
        else:
            guarded = forking = _waiting.pop() if _waiting else ForkingProcess()
            forking.order(str(method), command, log)
    try:
        yield guarded.process
    finally:
        guarded.close()


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
