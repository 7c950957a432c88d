# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a command to stop, as an exception: what is under way can then be ended in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; Slurm, systemd, `timeout` and CI; a terminal that was closed."""


class StopSignal(KeyboardInterrupt):
    """A signal asked this process to stop.

    A KeyboardInterrupt, so that no `except Exception` on the way takes it for a fault of its own.

    Attributes:
        number: of the signal.
        text: for the person at the keyboard: what was stopped, and where its last state lies.
    """

    def __init__(self, number: int, text: str = "") -> None:
        self.number = number
        self.text = text or self.reason
        super().__init__(self.text)

    @property
    def reason(self) -> str:
        """`stopped by SIGTERM`."""
        return f"stopped by {signal.Signals(self.number).name}"

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells have it."""
        return 128 + self.number


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Let the first of SIGNALS raise StopSignal in the main thread; those after it do nothing.

    What is under way takes a few seconds to end its processes; a second Ctrl-C must not cut that short.
    A signal that is ignored already stays so: that is how `nohup` and a shell's `&` want it.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise StopSignal(number)

    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
