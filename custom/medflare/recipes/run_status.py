# SPDX-License-Identifier: Apache-2.0
"""Progress of the runs of a folder, read from their records, their events and their locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.core.run_record import RunRecord, read_record
from medflare.recipes.old_runs import StoredRun, find_runs, record_file, stored_run
from medflare.recipes.progress_view import Board, Follower
from medflare.recipes.workspace_lock import holder


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run and how far it is.

    Attributes:
        stored: where it lies, its state, when it began.
        round: of `rounds`, counted from 1; 0 before the first.
        phase: of the last event, `round 2 of 5` for instance.
        sites: site -> the last that was heard of it.
        last_progress: seconds since the epoch of the last event; when the run began where there is none.
        pid: of the process that runs it on `host`; 0 where none is known, or it has ended.
        reason: why it ended, if it did.
    """

    stored: StoredRun
    run_id: str = ""
    round: int = 0
    rounds: int = 0
    phase: str = ""
    sites: dict[str, str] = field(default_factory=dict)
    last_progress: float
    pid: int = 0
    host: str = ""
    reason: str = ""


def statuses(folder: Path) -> list[RunStatus]:
    """Return the runs that go on in a folder; where none does, the newest one that lies there.

    Args:
        folder: a run's workspace, or a folder that holds such.

    Raises:
        DataError: there is no such folder, or no run in it.
    """
    run = stored_run(folder.resolve()) if folder.is_dir() else None
    runs = [run] if run else find_runs(folder)
    if not runs:
        raise DataError(f"{folder}: holds no run. Name a run's workspace, or a folder that holds runs.")
    return [status_of(run) for run in [run for run in runs if run.live] or runs[:1]]


def status_of(run: StoredRun) -> RunStatus:
    """Return how far a run is."""
    file = record_file(run.path)
    events = Follower(file.with_name("progress.jsonl")).new_events() if file else []
    board = Board()
    for event in events:
        board.take(event)
    rounds = [event for event in events if event["phase"] == "round"]
    record = _record(file)
    process = holder(run.path)
    return RunStatus(
        stored=run,
        run_id=record.run_id if record else "",
        round=int(rounds[-1]["round"]) + 1 if rounds else 0,
        rounds=int(rounds[-1]["rounds"]) if rounds else 0,
        phase=board.title,
        sites={site: str(row.get("verdict", "")) for site, row in sorted(board.rows.items())},
        last_progress=float(events[-1].get("time", run.started)) if events else run.started,
        pid=process.pid if run.state == "running" else 0,
        host=process.host,
        reason=record.reason if record else "",
    )


def as_json(status: RunStatus, now: float) -> dict[str, Any]:
    """Return a status as JSON types; `now` in seconds since the epoch."""
    run = status.stored
    return {
        "path": str(run.path),
        "job": run.job,
        "run_id": status.run_id,
        "state": run.state,
        "phase": status.phase,
        "round": status.round,
        "rounds": status.rounds,
        "sites": status.sites,
        "started": run.started,
        "seconds_since_start": round(max(0.0, now - run.started), 1),
        "seconds_since_progress": round(max(0.0, now - status.last_progress), 1),
        "pid": status.pid or None,
        "host": status.host or None,
        "reason": status.reason,
    }


def _record(file: Path | None) -> RunRecord | None:
    try:
        return read_record(file) if file else None
    except DataError:
        return None
