# SPDX-License-Identifier: Apache-2.0
"""Shows a run while it goes on: reads the server's progress.jsonl and draws round, site, loss, bytes sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from medflare.federation.heartbeat import ENDS

LOSSES = ("train_loss", "val_loss")
TOLD = ("val_bleu_4", "val_label_f1")
"""Metrics in the line of text of a round; the page has the rest."""

NOTED = ("preset", "warning")
"""Events that are advice and no state of the run."""


class Follower:
    """Reads the lines that were added to a file since the last look; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def new_events(self) -> list[dict[str, Any]]:
        """Return the new events; a half-written line is read next time, a broken one never."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [event for line in complete.splitlines() if (event := _event(line)) is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line, or None if it holds none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "phase" in event else None


class Board:
    """The state of a run as its events tell it, and a table of it."""

    def __init__(self) -> None:
        self.title, self.note = "starting", ""
        self.rows: dict[str, dict[str, Any]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Takes one event."""
        phase, site = str(event["phase"]), event.get("site")
        if phase == "round":
            self.title = f"round {event['round'] + 1} of {event['rounds']}"
            for name in event["sites"]:
                self.rows.setdefault(name, {"bytes": 0})["verdict"] = "training"
        elif phase == "round done":
            mean = event["mean"]
            means = "  ".join(f"{name} {mean[name]:.4g}" for name in (*LOSSES, *TOLD) if name in mean)
            self.note = f"round {event['round'] + 1} in {event['seconds']:.1f} s  {means}"
        elif site and phase in ("update", "canary"):
            row = self.rows.setdefault(site, {"bytes": 0})
            row.update(verdict=event["verdict"], loss=event.get("loss"), seconds=event.get("seconds"))
            if phase == "update":  # a canary's bytes were counted with its update
                row["bytes"] += event.get("bytes_sent") or 0
        elif phase in NOTED:
            self.note = f"{phase}: {event['reason']}"
        elif site:
            self.rows.setdefault(site, {"bytes": 0})["verdict"] = phase
        else:
            self.title = f"{phase} {event.get('reason', '')}".strip()

    def table(self) -> Table:
        """Return the board as rich draws it."""
        table = Table(title=self.title, caption=self.note, title_justify="left", caption_justify="left")
        for name in ("site", "update", "loss", "seconds", "sent"):
            table.add_column(name)
        for site, row in sorted(self.rows.items()):
            loss, seconds = row.get("loss"), row.get("seconds")
            table.add_row(
                site,
                str(row.get("verdict", "")),
                "" if loss is None else f"{loss:.4f}",
                "" if seconds is None else f"{seconds:.1f}",
                human_bytes(row["bytes"]),
            )
        return table


def human_bytes(count: int) -> str:
    """Return a size like `1.5 MB`, in powers of 1000."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def line(event: dict[str, Any]) -> str:
    """Return one event as a line of text, for logs and pipes."""
    facts = {key: value for key, value in event.items() if key not in ("time", "phase", "mean")}
    if event["phase"] == "val":  # a dozen scores a site and round are for the page
        facts = {key: facts[key] for key in ("round", "site", "val_loss", *TOLD) if key in facts}
    facts |= {f"mean_{key}": value for key, value in event.get("mean", {}).items() if key.endswith("_loss")}
    if "bytes_sent" in facts:
        facts["bytes_sent"] = human_bytes(facts["bytes_sent"]).replace(" ", "")
    words = " ".join(f"{key}={f'{x:.4g}' if isinstance(x, float) else x}" for key, x in facts.items())
    return f"{event['phase']}: {words}" if words else str(event["phase"])


def live(
    console: Console | None = None,
) -> tuple[AbstractContextManager[Any], Callable[[dict[str, Any]], None]]:
    """Return a context manager that draws and a function that takes events; plain lines if no terminal."""
    console = console or Console()
    if not console.is_terminal:
        return nullcontext(), lambda event: console.print(line(event), highlight=False, soft_wrap=True)
    board = Board()
    display = Live(board.table(), console=console, refresh_per_second=4)

    def take(event: dict[str, Any]) -> None:
        board.take(event)
        display.update(board.table())

    return display, take


def follow(path: Path, alive: Callable[[], bool], console: Console | None = None) -> None:
    """Draws a run from its progress.jsonl until it ends or `alive` says no."""
    follower = Follower(path)
    display, take = live(console)
    with display:
        while True:
            going = alive()
            events = follower.new_events()
            for event in events:
                take(event)
            if not going or any(event["phase"] in ENDS for event in events):
                return
            time.sleep(0.2)
