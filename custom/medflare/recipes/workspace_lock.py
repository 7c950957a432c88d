# SPDX-License-Identifier: Apache-2.0
"""One run at a time in one workspace: FLARE's simulator deletes the files in it, a running job's too."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medflare.core.errors import ConfigError

FILE = "run.lock"
"""In the workspace's `local/`, which the simulator leaves alone."""


@contextmanager
def locked(workspace: Path) -> Iterator[None]:
    """Hold a workspace for one run; the operating system lets go of it if the process dies.

    Raises:
        ConfigError: another run holds it.
    """
    file = workspace / "local" / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise ConfigError(
                f"{workspace}: another run is using this folder (process {holder}), and a second one would "
                "delete its files. Wait for it, or name another folder with --workspace."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def in_use(workspace: Path) -> bool:
    """Return whether a run holds a workspace. Nothing is written, and links are not followed."""
    file = workspace / "local" / FILE
    if file.is_symlink() or file.parent.is_symlink() or not file.is_file():
        return False
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
