# SPDX-License-Identifier: Apache-2.0
"""In the place of the Python that FLARE's simulator starts: asks for a process that has its imports already.

    python -IS forked_program.py <socket> <python> <module> <arguments of python...>

The simulator starts a program for each client, `sys.executable -m <module> ...`. This one, of a few
milliseconds, asks `recipes.forked_simulator` to fork that process, and stands for it: it ends as that process
ends, and that is killed when this one is. It imports nothing of medflare, and is Python itself for any other
module, or where nobody answers.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys


def main(path: str, python: str, module: str, arguments: list[str]) -> int:
    """Stand for the process that runs `python <arguments>`, and return its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    if arguments[:2] == ["-m", module]:
        try:
            ask(connection, path, arguments[2:])
        except (OSError, ValueError):
            pass
        else:
            return wait(connection)
    connection.close()
    os.execv(python, [python, *arguments])


def ask(connection: socket.socket, path: str, arguments: list[str]) -> None:
    """Ask for a process with this one's environment, folder and output.

    Raises:
        OSError, ValueError: there is none.
    """
    body = {"env": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}
    request = json.dumps(body).encode()
    connection.connect(path)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))]
    connection.sendmsg([len(request).to_bytes(4, "big")], ancillary)
    connection.sendall(request)
    int(line(connection))


def wait(connection: socket.socket) -> int:
    """Return the exit code of the process; a signal that ended it ends this one."""
    try:
        code = int(line(connection))
    except (OSError, ValueError):
        return 1  # the server died, and all its processes with it
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


def line(connection: socket.socket) -> bytes:
    """Return the next line, or what came of it before the other side closed."""
    found = b""
    while not found.endswith(b"\n") and (byte := connection.recv(1)):
        found += byte
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
