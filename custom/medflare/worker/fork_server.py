# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a simulated run, forked from one process that has imported what they need.

    python -m medflare.worker.fork_server <socket> <method> <command>

It starts a command, which is FLARE's simulator, imports the method's learner meanwhile, and forks a worker
for every executor that asks at the socket. PyTorch, transformers and PEFT are then imported once, and the
sites share the memory that they take. A deployed site has one worker, which is started as a program.

Nothing here may start a thread or use a GPU: neither survives a fork.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
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


def main(path: str, method: str, command: Sequence[str]) -> int:
    """Start the command, serve workers until it ends, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        process = subprocess.Popen(command, env={**os.environ, VARIABLE: path})
        try:
            preload(method)
        except Exception:
            traceback.print_exc()  # the worker that needs it says so to its executor
        _serve(listener, process)
        code = process.wait()
        return code if code >= 0 else 128 - code


def preload(method: str) -> None:
    """Import what a worker of this method imports, and leave no garbage for a fork to copy."""
    from medflare.learners.registry import get_method

    importlib.import_module("medflare.worker.main")
    known = get_method(method)
    importlib.import_module(known.build.split(":")[0])
    if known.facts.lora:
        importlib.import_module("peft")
    gc.collect()
    gc.freeze()


def _serve(listener: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Fork a worker for each request until the process ends, and report each worker's end."""
    workers: dict[int, tuple[int, socket.socket]] = {}  # descriptor of its pid -> pid, connection
    while process.poll() is None:
        for ready in select.select([listener.fileno(), *workers], [], [], _POLL)[0]:
            if ready == listener.fileno():
                connection, _ = listener.accept()
                pid = _fork(listener, connection, [other for _, other in workers.values()])
                if pid:
                    workers[os.pidfd_open(pid)] = (pid, connection)
                continue
            pid, connection = workers.pop(ready)
            os.close(ready)
            _, status = os.waitpid(pid, 0)
            with suppress(OSError), connection:  # an executor that has gone asks no more
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _fork(listener: socket.socket, connection: socket.socket, others: Sequence[socket.socket]) -> int:
    """Read a request and fork its worker; return its pid, or 0 where the request is none."""
    try:
        request, descriptors = _read(connection)
    except (OSError, ValueError):
        connection.close()
        return 0
    pid = os.fork()
    if not pid:
        for inherited in (listener, connection, *others):
            inherited.close()
        _run(request, *descriptors)
    with suppress(OSError):
        os.setpgid(pid, pid)  # here too: the executor may end the group before the worker has made it
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(OSError):
        connection.sendall(f"{pid}\n".encode())
    return pid


def _read(connection: socket.socket) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return a request, and the descriptors of its channel and log.

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
    channel, log = descriptors
    return json.loads(body), (channel, log)


def _run(request: Mapping[str, Any], channel: int, log: int) -> None:
    """Be the worker of a request; never returns."""
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(log)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        from medflare.worker.main import main as work

        work(channel)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def usable() -> bool:
    """Return whether workers of this machine can be forked: not where a GPU may be in use."""
    return sys.platform == "linux" and not Path("/dev/nvidiactl").exists()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
