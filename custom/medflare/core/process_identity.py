# SPDX-License-Identifier: Apache-2.0
"""Identity of the process that wrote a file, which a later process with the same number does not share."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TIME = 19
"""Place of `starttime` in /proc/<pid>/stat after the name, which may itself hold spaces (proc(5))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process of this machine.

    Attributes:
        pid: its number, which the system gives to another process once it has ended.
        started: when it began, in seconds since the machine's start where the system counts them: a clock
            that is set does not move it.
        boot: the system's id of this start of the machine; empty where it has none.
    """

    pid: int
    started: float
    boot: str

    @classmethod
    def of(cls, pid: int | None = None) -> ProcessIdentity:
        """Return the identity of a running process; of this one without `pid`.

        Raises:
            psutil.NoSuchProcess: there is none of that number.
        """
        number = os.getpid() if pid is None else pid
        return cls(pid=number, started=_started(psutil.Process(number)), boot=boot_id())

    @classmethod
    def from_json(cls, data: Any) -> ProcessIdentity | None:
        """Return what `to_json` wrote; None where it is something else."""
        try:
            return cls(pid=int(data["pid"]), started=float(data["started"]), boot=str(data["boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self)

    def process(self) -> psutil.Process | None:
        """Return the process if it still runs: the same number, start and boot of the machine."""
        if self.boot != boot_id():
            return None
        try:
            process = psutil.Process(self.pid)
            same = abs(_started(process) - self.started) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self.process() is not None


def _started(process: psutil.Process) -> float:
    """Return when a process began.

    On Linux not psutil's `create_time`: that is relative to the present time of day, so a clock that is set
    by ten minutes would make another process of one that still runs.
    """
    if not sys.platform.startswith("linux"):
        return process.create_time()
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        raise psutil.NoSuchProcess(process.pid) from None


def boot_id() -> str:
    """Return the id of this start of the machine; empty where the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
