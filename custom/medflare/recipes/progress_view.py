# SPDX-License-Identifier: Apache-2.0
"""Shows a run while it goes on: reads the server's progress.jsonl and draws it in a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from medflare.federation.heartbeat import ENDS
from medflare.recipes.run_board import TOLD, Board, human_bytes
from medflare.recipes.site_tasks import running_tasks


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


def line(event: dict[str, Any]) -> str:
    """Return one event as a line of text, for logs and pipes."""
    facts = {key: value for key, value in event.items() if key not in ("time", "phase", "mean")}
    if event["phase"] == "val":  # a dozen scores a site and round are for the page
        facts = {key: facts[key] for key in ("round", "site", "val_loss", *TOLD) if key in facts}
    for name in ("round", "visit"):
        if isinstance(facts.get(name), int):  # files count from 0, people from 1
            facts[name] += 1
    facts |= {f"mean_{key}": value for key, value in event.get("mean", {}).items() if key.endswith("_loss")}
    if "bytes_sent" in facts:
        facts["bytes_sent"] = human_bytes(facts["bytes_sent"]).replace(" ", "")
    reason = facts.pop("reason", None)
    pairs = [f"{key}={_text(value)}" for key, value in facts.items() if value not in ([], {})]
    words = " ".join([*([str(reason)] if reason else []), *pairs])
    return f"{event['phase']}: {words}" if words else str(event["phase"])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_text(entry)}" for key, entry in value.items())
    return str(value)


def live(
    console: Console | None = None, workspace: Path | None = None
) -> tuple[AbstractContextManager[Any], Callable[[dict[str, Any]], None]]:
    """Return a context manager that draws and a function that takes events; plain lines if no terminal.

    Args:
        workspace: of a simulator, whose sites' running tasks are drawn too; None where they are elsewhere.
    """
    console = console or Console()
    if not console.is_terminal:
        return nullcontext(), lambda event: console.print(line(event), highlight=False, soft_wrap=True)
    board = Board(began=time.time())

    def drawn() -> Any:
        return board.drawn(time.time(), running_tasks(workspace, list(board.rows)) if workspace else {})

    # Given twice: the first is drawn at once, the function four times a second from then on.
    return Live(drawn(), get_renderable=drawn, console=console, refresh_per_second=4), board.take


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
