# SPDX-License-Identifier: Apache-2.0
"""Tells people that a run makes no progress, or has ended: a command of the operator's own is started.

The command stands in `local/medflare.yaml` of the server's kit, or is an option of `medflare run`. A job
cannot name one: whoever submits jobs must not start programs on the server.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from medflare.core.config import Settings, parse, read_yaml

FILE = "medflare.yaml"
"""In `local/` of the server's kit."""
DEADLINES = 2.0
"""A run counts as stalled after so many deadlines of a task without progress."""
TIME_LIMIT = 30.0
"""Seconds that a command may take; then it is ended."""
ENDS = ("completed", "failed", "stopped", "paused")
"""Phases of the last event of a run."""
_POLL = 1.0


class Hooks(Settings):
    """`local/medflare.yaml` of a server's kit: what is started when a run stalls or ends."""

    on_stall: list[str] = Field(default_factory=list)
    """Program and arguments, started once each time a run has made no progress for two deadlines."""
    on_end: list[str] = Field(default_factory=list)
    """Program and arguments, started when a run is completed, failed or was stopped."""


def read_hooks(kit: Path) -> Hooks:
    """Return the commands of a kit; none where it has no such file.

    Raises:
        ConfigError: the file cannot be used.
    """
    file = kit / "local" / FILE
    return parse(Hooks, read_yaml(file), str(file)) if file.exists() else Hooks()


class Heartbeat:
    """Watches one run from a thread.

    Args:
        hooks: what to start.
        deadline: seconds that a site may take for a task.
        facts: of the run, JSON types, which every command gets.
        on_stall: called with the seconds without progress, before the command is started.
        warn: takes what is wrong with a command; it never ends a run.
        clock: seconds that pass.
    """

    def __init__(
        self,
        hooks: Hooks,
        deadline: float,
        facts: Mapping[str, Any],
        warn: Callable[[str], None],
        on_stall: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hooks, self.limit, self.facts = hooks, DEADLINES * deadline, dict(facts)
        self.warn, self.on_stall, self.clock = warn, on_stall, clock
        self.round = 0
        self._last, self._reported = clock(), False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; a command that runs is waited for."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(TIME_LIMIT + 5)

    def progress(self, event: Mapping[str, Any]) -> None:
        """Take one event of the run; that it stalled is no progress."""
        if event.get("phase") == "stalled":
            return
        self._last, self._reported = self.clock(), False
        if isinstance(event.get("round"), int):
            self.round = event["round"] + 1

    def check(self) -> None:
        """Tell, once, if there has been no progress for too long."""
        seconds = self.clock() - self._last
        if self._reported or seconds < self.limit:
            return
        self._reported = True
        self.on_stall(seconds)
        self._run(self.hooks.on_stall, "stalled", f"no progress for {seconds:.0f} s")

    def end(self, status: str, reason: str) -> None:
        """Tell that the run has ended, and watch no longer."""
        self.stop()
        self._run(self.hooks.on_end, status, reason)

    def _watch(self) -> None:
        while not self._stop.wait(_POLL):
            self.check()

    def _run(self, command: Sequence[str], status: str, reason: str) -> None:
        """Start a command without a shell, and give it the facts as JSON on its standard input."""
        if not command:
            return
        facts = {**self.facts, "round": self.round, "status": status, "reason": reason}
        try:
            done = subprocess.run(
                list(command),
                input=json.dumps(facts).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=TIME_LIMIT,
                check=False,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.warn(f"the command {command[0]} could not be run: {error}")
            return
        if done.returncode:
            stderr = done.stderr.decode(errors="replace").strip()[-500:]
            self.warn(f"the command {command[0]} ended with {done.returncode}. {stderr}")
