# SPDX-License-Identifier: Apache-2.0
"""One run at a time in one workspace: FLARE's simulator deletes the files in it, a running job's too."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import ConfigError
from medflare.wire import process_file
from medflare.wire.process_file import FolderLock, open_lock

FILE = "run.lock"
"""In the folder of the run's state: what is in the workspace the simulator deletes or copies."""


def state_of(workspace: Path) -> Path:
    """Return the folder beside a workspace that holds its state."""
    return workspace.with_name(workspace.name + ".state")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that wrote a lock last; it may have ended since.

    Attributes:
        pid: 0 where the file does not say.
        host: name of its machine; empty where the file does not say.
    """

    pid: int = 0
    host: str = ""

    @property
    def on_this_machine(self) -> bool:
        """True if it is, or was, a process of this machine."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host and not self.on_this_machine else ""
        return f"process {self.pid or 'unknown'}{where}"


@contextmanager
def locked(workspace: Path) -> Iterator[None]:
    """Hold a workspace for one run; the operating system lets go of it if the process dies.

    Raises:
        ConfigError: another run holds it.
    """
    lock = FolderLock(state_of(workspace), FILE)
    if not lock.acquire():
        raise ConfigError(
            f"{workspace}: another run is using this folder ({holder(workspace)}), and a second one "
            "would delete its files. `medflare status` shows it. Wait for it, or name another folder "
            "with --workspace."
        )
    try:
        lock.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        lock.release()


def in_use(workspace: Path) -> bool:
    """Return whether a run holds a workspace. Nothing is written, and links are not followed."""
    return process_file.in_use(state_of(workspace), FILE)


def holder(workspace: Path) -> LockHolder:
    """Return the process that wrote the workspace's lock last, as far as the file says. Links are not
    followed."""
    descriptor = open_lock(state_of(workspace), FILE)
    if descriptor is None:
        return LockHolder()
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        try:
            held = json.loads(file.read(1000))
        except ValueError:
            return LockHolder()
    if not isinstance(held, dict) or not isinstance(held.get("pid"), int):
        return LockHolder(held) if isinstance(held, int) else LockHolder()  # 0.1.0 wrote the number alone
    return LockHolder(held["pid"], str(held.get("host", ""))[:255])
