# SPDX-License-Identifier: Apache-2.0
"""Programs as people of a federation start them, and waiting for what they do."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONG = 900.0
"""Seconds after which what is waited for will not come, on a slow machine with other work either."""
PORTS = range(20000, 32000)
"""Below those that the system gives to programs that ask for any."""
TOOLS = (
    *("bash", "basename", "cat", "chmod", "cp", "date", "dirname", "env"),
    *("grep", "gzip", "ln", "ls", "mkdir", "nohup", "rm", "sed", "sleep", "tail", "tar", "touch"),
)


def bare_path(folder: Path) -> str:
    """A path with this Python and the few programs that start scripts call: as on a machine without Java."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOOLS:
        if not (folder / name).exists():
            (folder / name).symlink_to(str(shutil.which(name)))
    return f"{Path(sys.executable).parent}{os.pathsep}{folder}"


def environment() -> dict[str, str]:
    """What this environment's programs see: it comes first on the path; no hub, one thread."""
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **quiet, "PATH": path}


def free_port() -> int:
    """A port that nobody listens on now, nor is given before its server is there."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port in {PORTS}")


def wait_until(what: str, found: Callable[[], Any], timeout: float, every: float = 0.1) -> Any:
    """The first value of `found()` that is true; TimeoutError says what was waited for."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(every)
    raise TimeoutError(f"waited {timeout:g} s for {what}")


def run(
    *command: str, timeout: float = LONG, cwd: Path | None = None, stdin: str = "", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """A program to its end; a failed one shows everything it said."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=cwd, input=stdin, env=environment()
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done
