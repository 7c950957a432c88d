# SPDX-License-Identifier: Apache-2.0
"""Processes of a simulated run, forked from one that has imported what they need.

PyTorch, transformers and PEFT are then imported once for all sites, which share the memory that they take. An
executor asks at a socket for its worker; `recipes.forked_simulator` starts FLARE's processes the same way. A
deployed site has one worker, which is started as a program.

Nothing may start a thread or use a GPU before a fork: neither survives it.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "MEDFLARE_FORK_SERVER"
"""Environment variable that names the socket to the executors."""
LONGEST = 1 << 20
"""Most bytes of a request, which holds the environment of a process."""
PATIENCE = 600.0
"""Seconds that an executor waits for a worker: the imports of a busy machine."""
_POLL = 0.2


class ForkedProcess:
    """A worker that the fork server started, as `subprocess.Popen` would show it.

    Args:
        connection: on which the server says how the process ended.
        pid: its process id, which is also its process group's.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            try:
                self.returncode = int(_line(self.connection))
            except (OSError, ValueError):
                self.returncode = 1  # the server died; its workers end with their executors
            self.connection.close()
        return self.returncode


def _line(connection: socket.socket) -> bytes:
    """Return the next line, or what came of it before the other side closed."""
    line = b""
    while not line.endswith(b"\n") and (byte := connection.recv(1)):
        line += byte
    return line


def fork_worker(channel: socket.socket, log: int, env: Mapping[str, str]) -> ForkedProcess | None:
    """Ask the run's fork server for a worker; None where the run has none, or it does not answer.

    Args:
        channel: the worker's end of its socket.
        log: descriptor that becomes its standard output and error.
        env: its environment.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    request = json.dumps({"env": dict(env), "folder": os.getcwd()}).encode()
    try:
        connection.connect(path)
        descriptors = array.array("i", [channel.fileno(), log])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        connection.sendmsg([len(request).to_bytes(4, "big")], ancillary)
        connection.sendall(request)
        pid = int(_line(connection))
    except (OSError, ValueError):
        connection.close()
        return None
    connection.settimeout(None)
    return ForkedProcess(connection, pid)


def preload(method: str) -> None:
    """Import what a worker of this method imports, and leave no garbage for a fork to copy."""
    from medflare.learners.registry import get_method
    from medflare.tasks import get_task

    importlib.import_module("medflare.worker.main")
    known = get_method(method)
    late = ("peft",) if known.facts.lora else ()
    for module in (known.build.split(":")[0], *late, *get_task(known.task).tests_import):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


class ForkServer:
    """Forks a process for every request at a socket, and reports how each ended.

    Args:
        path: of the socket, in a folder that only this user can enter.
        run: what a forked process does, with its request and two descriptors; it does not return.
        kills: whether a process is killed when the one that asked for it has gone.
    """

    def __init__(self, path: str, run: Callable[[Mapping[str, Any], int, int], None], kills: bool) -> None:
        self._run, self._kills = run, kills
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._asked: dict[int, tuple[int, socket.socket]] = {}  # descriptor of a pid -> pid, connection

    def serve(self, goes_on: Callable[[], bool]) -> None:
        """Answer requests, one at a time, as long as `goes_on` says."""
        while goes_on():
            connections = {c.fileno(): pid for pid, c in self._asked.values()} if self._kills else {}
            waiting = [self._listener.fileno(), *self._asked, *connections]
            for ready in select.select(waiting, [], [], _POLL)[0]:
                if ready == self._listener.fileno():
                    self._fork(self._listener.accept()[0])
                elif ready in self._asked:
                    self._report(*self._asked.pop(ready), ready)
                else:  # nothing is sent here: it was closed
                    with suppress(OSError):
                        os.killpg(connections[ready], signal.SIGKILL)

    def _report(self, pid: int, connection: socket.socket, descriptor: int) -> None:
        """Tell who asked for a process how it ended."""
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError), connection:  # an executor that has gone asks no more
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())

    def _fork(self, connection: socket.socket) -> None:
        """Read a request and fork its process; a connection that brings none is closed."""
        try:
            request, descriptors = _read(connection)
        except (OSError, ValueError):
            connection.close()
            return
        pid = os.fork()
        if not pid:
            self.leave()
            connection.close()
            become(request)
            self._run(request, *descriptors)
        with suppress(OSError):
            os.setpgid(pid, pid)  # here too: the executor may end the group before the process has made it
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):
            connection.sendall(f"{pid}\n".encode())
        self._asked[os.pidfd_open(pid)] = (pid, connection)

    def leave(self) -> None:
        """Close what a forked process has inherited of the server."""
        self._listener.close()
        for descriptor, (_, connection) in self._asked.items():
            os.close(descriptor)
            connection.close()


def _read(connection: socket.socket) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return a request and its two descriptors.

    Raises:
        ValueError: it is none.
    """
    connection.settimeout(10.0)
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 2)
    size = int.from_bytes(head, "big")
    if len(descriptors) != 2 or size > LONGEST:
        raise ValueError(f"a request of {size} bytes with {len(descriptors)} descriptors.")
    body = b""
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            raise ValueError("a request that ends early.")
        body += part
    connection.settimeout(None)
    first, second = descriptors
    return json.loads(body), (first, second)


def become(request: Mapping[str, Any]) -> None:
    """Take the folder and environment of a request, in a process group of its own, with no input."""
    with suppress(OSError):
        os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])


def run_worker(request: Mapping[str, Any], channel: int, log: int) -> None:
    """Be a worker; never returns."""
    try:
        write_to(log, log)
        from medflare.worker.main import main as work

        work(channel)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)


def write_to(output: int, errors: int) -> None:
    """Make two descriptors this process's standard output and error."""
    for source, target in ((output, 1), (errors, 2)):
        os.dup2(source, target)
    for descriptor in {output, errors}:
        os.close(descriptor)


def serve_workers(path: str, method: str, goes_on: Callable[[], bool]) -> None:
    """Import what a worker of a method needs, and fork workers."""
    server = ForkServer(path, run_worker, kills=False)
    try:
        preload(method)
    except Exception:
        traceback.print_exc()  # the worker that needs it says so to its executor
    server.serve(goes_on)


def usable() -> bool:
    """Return whether processes can be forked on this machine: not where a GPU may be in use."""
    return sys.platform == "linux" and not Path("/dev/nvidiactl").exists()
