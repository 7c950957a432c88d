# SPDX-License-Identifier: Apache-2.0
"""Finds the runs that lie below a folder, and deletes the old ones among them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import RunRecord, read_record
from medflare.recipes.simulator_process import SERVER_FOLDER
from medflare.recipes.workspace_lock import FILE as LOCK
from medflare.recipes.workspace_lock import holder, in_use, state_of

QUIET = 3600.0
"""Seconds without a change after which a run that says 'running' counts as interrupted, where no lock of this
machine says so at once: it may be a server's, or run on another machine that shares the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run on disk.

    Attributes:
        path: of its workspace, directly in the folder that was searched.
        state: status of its record; 'interrupted' for one that says 'running' and is not; 'damaged' for a
            record that cannot be read; 'no record' for a workspace whose run made none.
        started: seconds since the epoch.
        size: bytes of its files and of its state beside it; what links point to does not count.
        live: whether it may still be running, and must stay.
    """

    path: Path
    state: str
    job: str
    started: float
    size: int
    live: bool


def find_runs(folder: Path) -> list[StoredRun]:
    """Return the runs directly in a folder, the newest first. Links are not followed.

    Raises:
        DataError: there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder. Name one that holds runs, as `runs`.")
    runs = [stored_run(Path(entry.path)) for entry in _folders(folder.resolve())]
    return sorted((run for run in runs if run), key=lambda run: (run.started, run.path.name), reverse=True)


def choose(
    runs: Sequence[StoredRun], keep: int | None, older_than: float | None, now: float | None = None
) -> list[StoredRun]:
    """Return the runs to delete, none of which is live.

    Args:
        runs: the newest first.
        keep: so many of the newest stay; None for no such rule.
        older_than: days; younger runs stay. With `keep`, a run goes if both rules let it go; with neither,
            none does.
    """
    if keep is None and older_than is None:
        return []
    limit = (time.time() if now is None else now) - 86400 * (older_than or 0)
    rest = runs[keep or 0 :]
    return [run for run in rest if not run.live and (older_than is None or run.started < limit)]


def delete(run: StoredRun, folder: Path) -> None:
    """Delete a run's workspace.

    Raises:
        ConfigError: it is no longer what was found: it lies elsewhere, became a link, or is in use.
    """
    if run.path.parent != folder.resolve() or run.path.is_symlink() or not run.path.is_dir():
        raise ConfigError(f"{run.path}: is no longer a run's folder in {folder}. Nothing of it was deleted.")
    if in_use(run.path):
        raise ConfigError(f"{run.path}: a run has started there. Nothing of it was deleted.")
    shutil.rmtree(run.path)  # which refuses links and follows none
    state = state_of(run.path)
    if state.is_dir() and not state.is_symlink():
        shutil.rmtree(state)


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def record_file(path: Path) -> Path | None:
    """Return the run.json of a workspace, or None. Links are not followed."""
    return next((f for f in (path / "run.json", path / SERVER_FOLDER / "run.json") if _inside(f, path)), None)


def stored_run(path: Path) -> StoredRun | None:
    """Return the run of a workspace; None if the folder is none. Links are not followed."""
    file, lock = record_file(path), state_of(path) / LOCK
    if file is None and not _inside(lock, state_of(path)):
        return None
    record, state = None, "no record"
    if file is not None:
        try:
            record = read_record(file)
            state = record.status
        except DataError:
            state = "damaged"
    changed = (file or lock).lstat().st_mtime
    if file is not None and _inside(file.with_name("progress.jsonl"), path):
        changed = max(changed, file.with_name("progress.jsonl").lstat().st_mtime)
    locked = in_use(path)
    # A lock that a process of this machine wrote and nobody holds: that process has ended.
    ended = holder(path).on_this_machine and not locked
    live = locked or (state == "running" and not ended and time.time() - changed < QUIET)
    if state == "running" and not live:
        state = "interrupted"
    return StoredRun(
        path=path,
        state="running" if locked else state,
        job=record.job if record else "",
        started=_started(record, changed),
        size=_size(path) + (0 if state_of(path).is_symlink() else _size(state_of(path))),
        live=live,
    )


def _inside(file: Path, folder: Path) -> bool:
    """Return whether there is a regular file, and no link on the way from the folder to it."""
    below = [file, *(parent for parent in file.parents if parent.is_relative_to(folder))]
    return file.is_file() and not any(part.is_symlink() for part in below)


def _started(record: RunRecord | None, otherwise: float) -> float:
    """Return when a run began, by its record or, where that does not say, by the date of its file."""
    try:
        return datetime.fromisoformat(record.started).timestamp() if record else otherwise
    except (ValueError, OverflowError):
        return otherwise


def _size(folder: Path) -> int:
    """Return the bytes of the files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # a run that goes on replaces its files
                continue
    return total
