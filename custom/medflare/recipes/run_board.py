# SPDX-License-Identifier: Apache-2.0
"""The state of a run as its events tell it, with the time that is left, and a table of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from medflare.reporting.formatting import duration
from medflare.worker.progress_file import TaskProgress

LOSSES = ("train_loss", "val_loss")
TOLD = ("val_bleu_4", "val_label_f1")
"""Metrics in the line of text of a round; the page has the rest."""
NOTED = ("preset", "rounds", "warning")
"""Events that are advice and no state of the run."""
LAST_ROUNDS = 5
"""Rounds by whose median the time left is estimated."""
ENOUGH = 0.1
"""Share of a first round that must be done before the time left is estimated by it."""


class Board:
    """The state of a run as its events tell it.

    Args:
        began: seconds since the epoch; None where the first event tells.
    """

    def __init__(self, began: float | None = None) -> None:
        self.title, self.note = "starting", ""
        self.rows: dict[str, dict[str, Any]] = {}
        self._began = began
        self._round_began = 0.0
        self._rounds_left = 0
        self._seconds: list[float] = []

    def take(self, event: dict[str, Any]) -> None:
        """Take one event."""
        phase, site = str(event["phase"]), event.get("site")
        self._began = self._began or event.get("time")
        if phase == "round":
            self._begin_round(event)
        elif phase == "round done":
            self._seconds.append(float(event["seconds"]))
            mean = event["mean"]
            means = "  ".join(f"{name} {mean[name]:.4g}" for name in (*LOSSES, *TOLD) if name in mean)
            self.note = f"round {event['round'] + 1} in {event['seconds']:.1f} s  {means}"
        elif site and phase in ("update", "canary"):
            row = self._row(site)
            row.update(verdict=event["verdict"], loss=event.get("loss"), seconds=event.get("seconds"))
            if phase == "update":  # a canary's bytes were counted with its update
                row["bytes"] += event.get("bytes_sent") or 0
        elif phase in NOTED:
            self.note = f"{phase}: {event['reason']}"
        elif site:
            self._row(site)["verdict"] = phase
        else:
            self.title = f"{phase} {event.get('reason', '')}".strip()
            self._rounds_left = 0
            for name in event.get("sites", ()):
                self._row(name)

    def _begin_round(self, event: Mapping[str, Any]) -> None:
        self.title = f"round {event['round'] + 1} of {event['rounds']}"
        if "visit" in event:  # several exchanges of updates
            self.title += f", visit {event['visit'] + 1} of {event['visits']}"
        if not event.get("visit"):
            self._round_began = float(event.get("time", 0))
        self._rounds_left = event["rounds"] - event["round"]
        for name in event["sites"]:
            self._row(name)["verdict"] = "training"

    def _row(self, site: str) -> dict[str, Any]:
        return self.rows.setdefault(site, {"bytes": 0})

    def seconds_left(self, now: float, tasks: Mapping[str, TaskProgress] | None = None) -> float | None:
        """Return an estimate for the rounds that remain, this one included; None where nothing tells.

        Args:
            now: seconds since the epoch.
            tasks: what the sites are doing; in the first round the slowest of them tells how long one takes.
        """
        if not self._rounds_left or not self._round_began:
            return None
        elapsed = max(now - self._round_began, 0.0)
        if self._seconds:
            each = statistics.median(self._seconds[-LAST_ROUNDS:])
        else:
            shares = [task.done / task.total for task in (tasks or {}).values() if task.total]
            if not shares or min(shares) < ENOUGH:
                return None
            each = elapsed / min(shares)
        return max(each - elapsed, 0.0) + each * (self._rounds_left - 1)

    def headline(self, now: float, tasks: Mapping[str, TaskProgress] | None = None) -> str:
        """Return the phase, the time since the beginning, and the time that is left."""
        words = [self.title]
        if self._began:
            words.append(f"{duration(max(now - self._began, 0.0))} so far")
        left = self.seconds_left(now, tasks)
        if left is not None:
            words.append(f"about {duration(left)} of training left")
        return " · ".join(words)

    def drawn(self, now: float, tasks: Mapping[str, TaskProgress] | None = None) -> Group:
        """Return the board as rich draws it: the headline, a row for each site, and the last note.

        Args:
            now: seconds since the epoch.
            tasks: site -> what it is doing, in place of what it did last.
        """
        tasks = tasks or {}
        table = Table()
        for name in ("site", "state", "loss", "seconds", "sent"):
            table.add_column(name)
        for site, row in sorted(dict(self.rows).items()):  # events come from another thread
            loss, seconds = row.get("loss"), row.get("seconds")
            table.add_row(
                site,
                str(tasks.get(site) or row.get("verdict", "")),
                "" if loss is None else f"{loss:.4f}",
                "" if seconds is None else f"{seconds:.1f}",
                human_bytes(row["bytes"]),
            )
        parts: list[RenderableType] = [Text(self.headline(now, tasks), style="bold")]
        parts += [table] if self.rows else []
        parts += [Text(self.note, style="italic")] if self.note else []
        return Group(*parts)


def human_bytes(count: int) -> str:
    """Return a size like `1.5 MB`, in powers of 1000."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
