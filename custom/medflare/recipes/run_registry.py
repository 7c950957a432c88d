# SPDX-License-Identifier: Apache-2.0
"""The runs of a kit, the server's or a site's, and what is left of those whose processes died."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import RunRecord, read_record
from medflare.federation.server.run_folder import RECORD
from medflare.federation.server.run_state import has_state, load_state
from medflare.wire.process_file import in_use, read_holder
from medflare.wire.storage import LOCAL_STATE, RUNS, storage_folder

LOST = "its process ended without a word; `medflare resume` goes on with it"
SECONDS_TO_END = 10.0
"""Seconds in which an orphaned process may end by itself before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KitRun:
    """A run that a kit keeps.

    Attributes:
        path: its folder.
        state: what is true of it now: running, orphaned (its process runs, but FLARE's that started it is
            gone), interrupted (it says running and nothing runs), else as its record says; at a site, which
            keeps no record, running, orphaned or idle.
        exchanges: of updates that are done, and from which it would go on; None where no state was saved.
        pid: of its process, if it runs.
    """

    path: Path
    state: str
    job: str
    exchanges: int | None
    pid: int | None
    record: RunRecord | None

    @property
    def name(self) -> str:
        """Name of the run: FLARE's id of its first job."""
        return self.path.name


def is_kit(folder: Path) -> bool:
    """Return whether a folder is a startup kit."""
    return (folder / "startup").is_dir() and (folder / "local").is_dir()


def kit_runs(kit: Path) -> list[KitRun]:
    """Return the runs that a kit keeps, the newest first.

    Raises:
        ConfigError: the folder is no kit.
    """
    if not is_kit(kit):
        raise ConfigError(f"{kit}: is no startup kit (it has no folder `startup`). Name the folder of one.")
    folders = [folder for folder in _run_folders(kit) if folder.is_dir() and not folder.is_symlink()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [_kit_run(folder) for folder in folders]


def reconcile(kit: Path) -> list[tuple[KitRun, str]]:
    """End orphaned processes, and write into the records of dead runs that they are dead.

    Returns:
        Each run of which something was done, and what.
    """
    done: list[tuple[KitRun, str]] = []
    for run in kit_runs(kit):
        orphan = read_holder(run.path).orphan
        if orphan is not None:
            end(orphan)
            done.append((run, f"ended its process {orphan.pid}, whose parent was gone"))
        record = run.record
        if record is not None and record.status == "running" and not in_use(run.path):
            record.status, record.reason = "stopped", LOST
            record.write(run.path / RECORD)
            done.append((run, "its record says now that it was interrupted"))
    return done


def end(process: psutil.Process) -> None:
    """End a process and its children: by request, and after a while by force."""
    try:
        every = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for one in every:
        _signal(one, force=False)
    _, left = psutil.wait_procs(every, timeout=SECONDS_TO_END)
    for one in left:
        _signal(one, force=True)
    psutil.wait_procs(left, timeout=SECONDS_TO_END)


def _signal(process: psutil.Process, force: bool) -> None:
    try:
        process.kill() if force else process.terminate()
    except psutil.NoSuchProcess:
        return


def _run_folders(kit: Path) -> list[Path]:
    """Return the run folders of a server's kit and those of a site's."""
    server = storage_folder(kit, "server") / RUNS
    folders = list(server.iterdir()) if server.is_dir() else []
    for site in {kit, storage_folder(kit, kit.name)}:
        states = site / LOCAL_STATE
        folders += list(states.iterdir()) if states.is_dir() else []
    return folders


def _kit_run(folder: Path) -> KitRun:
    record, exchanges, holder = None, None, read_holder(folder)
    at_server = folder.parent.name == RUNS
    if (folder / RECORD).is_file():
        try:
            record = read_record(folder / RECORD)
        except DataError:
            record = None
    if at_server and has_state(folder / "state"):
        try:
            exchanges = load_state(folder / "state").exchanges_done
        except DataError:
            exchanges = None
    alive = holder.process is not None and holder.process.alive
    if holder.orphan is not None:
        state = "orphaned"
    elif in_use(folder) or (alive and not at_server):
        state = "running"
    elif not at_server:
        state = "idle"
    elif record is None:
        state = "damaged"
    else:
        state = "interrupted" if record.status == "running" else record.status
    return KitRun(
        path=folder,
        state=state,
        job=record.job if record else "",
        exchanges=exchanges,
        pid=holder.process.pid if alive and holder.process else None,
        record=record,
    )
