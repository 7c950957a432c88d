# SPDX-License-Identifier: Apache-2.0
"""Progress of the running task of a learner, for whoever listens at the site; nothing of it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str, int, int], None]
"""Takes what is counted ("steps", "images read"), how many are done, and how many there are."""
Item = TypeVar("Item")


def _nobody(counted: str, done: int, total: int) -> None:
    """Drop the report."""


_LISTENER: ContextVar[Listener] = ContextVar("listener", default=_nobody)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the reports of this thread to `listener` while inside."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report_progress(counted: str, done: int, total: int) -> None:
    """Say how far the running task is."""
    _LISTENER.get()(counted, done, total)


def with_progress(items: Sequence[Item], counted: str = "steps") -> Iterator[Item]:
    """Yield items and report each one that is done when the next is asked for."""
    for done, item in enumerate(items):
        report_progress(counted, done, len(items))
        yield item
    report_progress(counted, len(items), len(items))
