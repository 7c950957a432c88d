# SPDX-License-Identifier: Apache-2.0
"""Pulls the plug of everything at one write to a disk, and goes on with what is there then.

`interrupted(run, write)` lets a run die at its n-th write (a file put in its place, or forced to the disk):
from that moment on no process of it writes anything, as after a power cut. `resumed(run)` is a new job that
goes on with it, with new processes at the server and at all sites.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fed_harness import Federation


class PlugPulledError(BaseException):
    """No process survives this: nothing catches it."""


@contextmanager
def plug(run: Federation, write: int) -> Iterator[list[str]]:
    """Pull the plug before the n-th write below the run's folder; 0 for never.

    Yields:
        The writes so far, as texts.
    """
    writes: list[str] = []
    lock = threading.Lock()
    originals: dict[str, Callable[..., Any]] = {"replace": os.replace, "fsync": os.fsync}

    def guarded(name: str) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **more: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else os.fspath(first)
            if place.startswith(str(run.root)):
                with lock:
                    writes.append(f"{name} {place[len(str(run.root)) :]}")
                    dead = write and len(writes) >= write
                if dead:
                    run.abort.trigger(True)
                    raise PlugPulledError
            return originals[name](first, *others, **more)

        return call

    hook = threading.excepthook
    try:
        threading.excepthook = lambda args: None if args.exc_type is PlugPulledError else hook(args)
        os.replace, os.fsync = guarded("replace"), guarded("fsync")
        yield writes
    finally:
        os.replace, os.fsync, threading.excepthook = originals["replace"], originals["fsync"], hook


def interrupted(run: Federation, write: int) -> bool:
    """Start a run and pull the plug at one of its writes; return whether it came so far."""
    try:
        with plug(run, write) as writes:
            run.run()
    except PlugPulledError:
        pass
    finally:
        run.done.set()
        run.flow.store.close()
        for executor in run.executors.values():
            executor.close()
    return len(writes) >= write


def count_writes(run: Federation) -> list[str]:
    """Run it to its end; return its writes."""
    with plug(run, 0) as writes:
        record = run.run()
    assert record.status == "completed", record.reason
    return writes


def resumed(run: Federation, number: int = 2) -> Federation:
    """Return a new job that goes on with a run."""
    rule = dict(run.rule)
    return replace(run, job=f"job{number}", resumes=run.resumes or run.job, rule=rule)
