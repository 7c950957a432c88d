# SPDX-License-Identifier: Apache-2.0
"""Runs a command and ends every process that came of it: `python -m ...process_guard <fd> <command>`.

FLARE's simulator starts its clients, and they their workers, in sessions of their own: no signal to one of
them, and no process group, reaches all. The guard stands between `medflare run` and the simulator and ends
the whole tree when the command ends, when it is told to (SIGTERM), and when whoever started it is gone, by
`kill -9` too: the pipe whose reading end it is given then closes.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_STUCK = 10.0
"""Seconds after SIGKILL in which a process that waits for a disk may still not be gone; then it is left."""
_POLL = 0.1
_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of <linux/prctl.h>."""


def main(pipe: int, command: Sequence[str]) -> int:
    """Run the command and return its exit code; a signal that the guard gets ends the guard by that signal.

    Args:
        pipe: reading end of a pipe that nobody writes to; it closes with whoever started the guard.
    """
    if sys.platform == "linux":
        # Processes whose parent has died become the guard's own children, and are found.
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: signals.append(number))
    child = subprocess.Popen(command)
    while child.poll() is None and not signals:
        if select.select([pipe], [], [], _POLL)[0]:
            end_descendants(grace=0.0)  # the workspace's lock is free already: another run may begin
            return 1
    end_descendants(GRACE)
    if signals:
        signal.signal(signals[0], signal.SIG_DFL)
        os.kill(os.getpid(), signals[0])
    code = child.wait()
    return code if code >= 0 else 128 - code


def end_descendants(grace: float) -> None:
    """End all processes below this one: SIGTERM, and SIGKILL for what is left after `grace` seconds."""
    descendants: set[psutil.Process] = set()
    until = time.monotonic() + grace
    asked: set[psutil.Process] = set()
    while (left := _alive(descendants)) and time.monotonic() < until + _STUCK:
        late = time.monotonic() >= until
        for process in left:
            with suppress(psutil.NoSuchProcess):
                if late:
                    process.kill()
                elif process not in asked:
                    process.terminate()
        asked |= left
        time.sleep(0.02)


def _alive(descendants: set[psutil.Process]) -> set[psutil.Process]:
    """Add the processes below this one to those found before; return those of all that still run."""
    descendants |= set(psutil.Process().children(recursive=True))
    with suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    alive = set()
    for process in descendants:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.add(process)
    return alive


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
