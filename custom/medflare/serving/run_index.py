# SPDX-License-Identifier: Apache-2.0
"""The runs that `medflare serve` shows: found anew at every request, named by nothing but their folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import DataError
from medflare.recipes.old_runs import StoredRun, find_runs, record_file, stored_run
from medflare.recipes.run_registry import KitRun, is_kit, kit_runs

RECORD = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """A run that can be shown.

    Attributes:
        name: its folder's name, which is also its address; unique in a folder.
        record: its run.json; None before it has one.
        state: what is true of it now, as `medflare runs list` says it.
        started: seconds since the epoch; None where it is not known.
        workspace: of a simulator, where the sites of the run are too; None at a kit.
    """

    name: str
    record: Path | None
    state: str
    job: str
    started: float | None
    workspace: Path | None = None

    @property
    def progress(self) -> Path | None:
        """The file of its events, beside the record."""
        return None if self.record is None else self.record.with_name("progress.jsonl")


class RunIndex:
    """The runs of a folder: workspaces in it, the workspace that it is, or the runs of a startup kit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if not self.folder.is_dir():
            raise DataError(f"{folder}: there is no such folder. Name one that holds runs, a run, or a kit.")

    def runs(self) -> list[ServedRun]:
        """Return the runs, the newest first."""
        if is_kit(self.folder):
            return [_of_kit(run) for run in kit_runs(self.folder)]
        single = stored_run(self.folder)
        return [_of_workspace(run) for run in ([single] if single else find_runs(self.folder))]

    def only(self, name: str | None = None) -> ServedRun:
        """Return the run of this name, or the one that there is.

        Raises:
            DataError: there is none, or several and no name; it lists them.
        """
        runs = self.runs()
        chosen = [run for run in runs if name in (None, run.name)]
        if len(chosen) != 1:
            listed = ", ".join(run.name for run in runs[:20]) or "none"
            raise DataError(f"{self.folder}: expected one run; name one of these with --run: {listed}.")
        return chosen[0]

    def find(self, name: str) -> ServedRun | None:
        """Return the run of this name, None where there is none. A name is compared, never opened."""
        return next((run for run in self.runs() if run.name == name), None)


def _of_workspace(run: StoredRun) -> ServedRun:
    return ServedRun(
        name=run.path.name,
        record=record_file(run.path),
        state=run.state,
        job=run.job,
        started=run.started,
        workspace=run.path,
    )


def _of_kit(run: KitRun) -> ServedRun:
    file = run.path / RECORD
    started = file.stat().st_mtime if file.is_file() else None
    return ServedRun(
        name=run.name,
        record=file if run.record is not None else None,
        state=run.state,
        job=run.job,
        started=started,
    )
