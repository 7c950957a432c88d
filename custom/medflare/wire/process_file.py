# SPDX-License-Identifier: Apache-2.0
"""Owner of a run's folder: `process.json` names job and process, `lock` admits one at a time."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from medflare.core.process_identity import ProcessIdentity
from medflare.wire.durable import read_json, write_json
from medflare.wire.folders import make_folder

FILE, LOCK = "process.json", "lock"
FOR_READERS = 0.5
"""Seconds in which `in_use`, which holds a lock for a moment itself, lets go of it again."""
_POLL = 0.1


class FolderLock:
    """Lets one process at a time work on a folder; the operating system lets go of it if that one dies.

    Args:
        file: of the lock in that folder.
    """

    def __init__(self, folder: Path, file: str = LOCK) -> None:
        self.file = folder / file
        self._held: IO[str] | None = None

    def acquire(self, seconds: float = FOR_READERS) -> bool:
        """Take the lock; return whether it could be had within so many seconds."""
        make_folder(self.file.parent)
        lock, until = self.file.open("a", encoding="utf-8"), time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._held = lock
                return True
            except BlockingIOError:
                if time.monotonic() >= until:
                    lock.close()
                    return False
                time.sleep(_POLL)

    @property
    def held(self) -> bool:
        """True if this object holds the lock."""
        return self._held is not None

    def write(self, text: str) -> None:
        """Replace what the lock's file says; only while it is held."""
        assert self._held is not None
        self._held.truncate(0)
        self._held.write(text)
        self._held.flush()

    def release(self) -> None:
        """Let go of the lock, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


def in_use(folder: Path, file: str = LOCK) -> bool:
    """Return whether a process works on a folder. Nothing is written, and links are not followed."""
    descriptor = open_lock(folder, file)
    if descriptor is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def open_lock(folder: Path, file: str = LOCK) -> int | None:
    """Return a descriptor of a folder's lock, to read; None if there is none, or a link on the way."""
    path = folder / file
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return None
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Job and process that work on a run.

    Attributes:
        job: FLARE's id. attempt: how many processes did before.
        process: the job's process. parent: FLARE's, which started it; each None where it is not known.
    """

    job: str = "unknown"
    attempt: int = -1
    process: ProcessIdentity | None = None
    parent: ProcessIdentity | None = None

    @property
    def orphan(self) -> psutil.Process | None:
        """The job's process, if it runs without the one that started it; None otherwise."""
        if self.process is None or (self.parent is not None and self.parent.alive):
            return None
        return self.process.process()

    def __str__(self) -> str:
        return f"job {self.job}, process {self.process.pid if self.process else 'unknown'}"


def write_holder(folder: Path, job: str) -> Holder:
    """Write down that this process works on a run from now on."""
    process, parent = ProcessIdentity.of(), ProcessIdentity.of(os.getppid())
    holder = Holder(job=job, attempt=read_holder(folder).attempt + 1, process=process, parent=parent)
    facts = {"process": process.to_json(), "parent": parent.to_json()}
    write_json(folder / FILE, {"job": job, "attempt": holder.attempt, **facts})
    return holder


def read_holder(folder: Path) -> Holder:
    """Return who works, or worked last, on a run; an empty one where that cannot be read."""
    try:
        facts = read_json(folder / FILE)
        return Holder(
            job=str(facts["job"]),
            attempt=int(facts["attempt"]),
            process=ProcessIdentity.from_json(facts.get("process")),
            parent=ProcessIdentity.from_json(facts.get("parent")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Holder()
