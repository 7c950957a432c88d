# SPDX-License-Identifier: Apache-2.0
"""Pulls the plug of everything at one moment, and goes on with what is there then.

`interrupted(run, write)` lets a run die at its n-th write (a file put in its place, or forced to the disk),
`interrupted_in(run, owner, name, call)` at the n-th call of a function: from that moment on no process of it
writes anything, and what was not forced to the disk is lost, as after a power cut. `resumed(run)` is a new
job that goes on with it, with new processes at the server and at all sites.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fed_harness import Federation

KEPT = ("server/runs", "*/local_state", "*/opened_sums")
"""Folders of server and sites that outlive a job."""


class PlugPulledError(BaseException):
    """No process survives this: nothing catches it."""


class Plug:
    """Of one run.

    Attributes:
        writes: so far, as texts. dead: whether it was pulled.
        forced: inode -> bytes that were forced to the disk.
    """

    def __init__(self, run: Federation) -> None:
        self.run, self.writes, self.dead = run, list[str](), False
        self.forced: dict[int, int] = {}

    def pull(self) -> None:
        """Let nobody write from here on."""
        self.dead = True
        self.run.abort.trigger(True)
        raise PlugPulledError

    def lose_unforced(self) -> None:
        """Cut off what files that outlive a job have beyond what was forced to the disk.

        Nothing that outlives a job is written over in place.
        """
        for folder in KEPT:
            for file in self.run.root.glob(f"{folder}/**/*"):
                if file.is_file() and not file.is_symlink():
                    facts = file.stat()
                    forced = self.forced.get(facts.st_ino, 0)
                    if facts.st_size > forced:
                        os.truncate(file, forced)


@contextmanager
def plug(run: Federation, write: int) -> Iterator[Plug]:
    """Pull the plug before the n-th write below the run's folder; 0 for never."""
    found, lock = Plug(run), threading.Lock()
    originals: dict[str, Callable[..., Any]] = {"replace": os.replace, "fsync": os.fsync}

    def guarded(name: str) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **more: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else os.fspath(first)
            if place.startswith(str(run.root)):
                with lock:
                    found.writes.append(f"{name} {place[len(str(run.root)) :]}")
                    dead = found.dead or (write and len(found.writes) >= write)
                if dead:
                    found.pull()
                if name == "fsync":
                    facts = os.fstat(first)
                    found.forced[facts.st_ino] = facts.st_size
            return originals[name](first, *others, **more)

        return call

    hook = threading.excepthook
    try:
        threading.excepthook = lambda args: None if args.exc_type is PlugPulledError else hook(args)
        os.replace, os.fsync = guarded("replace"), guarded("fsync")
        yield found
    finally:
        os.replace, os.fsync, threading.excepthook = originals["replace"], originals["fsync"], hook


def interrupted(run: Federation, write: int) -> bool:
    """Start a run and pull the plug at one of its writes; return whether it came so far."""
    with plug(run, write) as pulled:
        _run_until_dead(run)
        pulled.lose_unforced()
    return len(pulled.writes) >= write


def interrupted_in(
    run: Federation,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int = 1,
    after: bool = False,
) -> bool:
    """Start a run and pull the plug at the n-th call of a function; return whether it came so far.

    Args:
        owner: module or class that has it. after: at its end, not at its beginning.
    """
    real, calls = getattr(owner, name), itertools.count(1)
    with plug(run, 0) as pulled, monkeypatch.context() as patched:

        def wrapper(*args: Any, **more: Any) -> Any:
            number = next(calls)
            if pulled.dead or (number == call and not after):
                pulled.pull()
            result = real(*args, **more)
            if number == call:
                pulled.pull()
            return result

        patched.setattr(owner, name, wrapper)
        _run_until_dead(run)
        pulled.lose_unforced()
    return pulled.dead


def _run_until_dead(run: Federation) -> None:
    before = set(threading.enumerate())
    try:
        run.run()
    except PlugPulledError:
        pass
    finally:
        run.done.set()
        _wait_for_threads(before)
        run.flow.store.close()
        for executor in run.executors.values():
            executor.close()


def _wait_for_threads(before: set[threading.Thread]) -> None:
    """Wait for the run's clients, and for learners that they left behind: they still write."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        new = set(threading.enumerate()) - before
        if not any(thread.name.endswith(("(_client)", "(run)")) for thread in new):
            return
        time.sleep(0.005)


def count_writes(run: Federation) -> list[str]:
    """Run it to its end; return its writes."""
    with plug(run, 0) as pulled:
        record = run.run()
    assert record.status == "completed", record.reason
    return pulled.writes


def resumed(run: Federation, number: int = 2) -> Federation:
    """Return a new job that goes on with a run."""
    rule = dict(run.rule)
    return replace(run, job=f"job{number}", resumes=run.resumes or run.job, rule=rule)
