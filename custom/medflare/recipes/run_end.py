# SPDX-License-Identifier: Apache-2.0
"""The end of a run whose own process could not write it: its record is closed, its last state is named."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from medflare.core.errors import DataError
from medflare.core.run_record import RunRecord, read_record
from medflare.federation.server.run_state import has_state
from medflare.recipes.resume import WorkspaceState
from medflare.recipes.simulator_process import SERVER_FOLDER


def close_record(workspace: Path, status: Literal["failed", "stopped"], reason: str) -> None:
    """Write how a run ended into its record; one that says so already, or cannot be read, stays as it is.

    Every process of the run must have ended, or it would write its own record over this one.
    """
    folder = workspace / SERVER_FOLDER
    try:
        record = read_record(folder / "run.json")
    except DataError:
        return
    if record.status != "running":
        return
    record.status, record.reason = status, reason
    with suppress(ValueError):
        record.seconds = round(time.time() - datetime.fromisoformat(record.started).timestamp(), 3)
    for entry in record.rounds[-1:]:
        unjudged = set(record.sites) - set(entry.accepted) - set(entry.absent)
        entry.absent |= dict.fromkeys(sorted(unjudged), "the run ended before its update was judged")
    record.write(folder / "run.json")
    event = {"time": round(time.time(), 3), "phase": status, "reason": reason}
    with (folder / "progress.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def last_state(workspace: Path) -> str:
    """Return a sentence that says where the last good state of a workspace's run lies."""
    folder = workspace / SERVER_FOLDER
    with suppress(DataError):
        record = read_record(folder / "run.json")
        if record.status == "completed":
            return f"The run was complete before: {folder / 'run.json'}"
        return f"{_state(workspace, record)} Record: {folder / 'run.json'}"
    return "It had written nothing yet."


def _state(workspace: Path, record: RunRecord) -> str:
    if not has_state(WorkspaceState(workspace).run / "state"):
        return "No round was finished."
    kept = [f"the state from which `medflare resume {workspace}` goes on"]
    folder = workspace / SERVER_FOLDER
    kept += [f"its {name} adapter in {folder / path}" for name, path in sorted(record.artefacts.items())]
    return f"What is left of it: {', '.join(kept)}."
