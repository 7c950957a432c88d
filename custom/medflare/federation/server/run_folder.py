# SPDX-License-Identifier: Apache-2.0
"""The server's folder of a run, which outlives its jobs: state to go on from, record, lock.

    runs/<run>/state/              the last two states (`run_state`)
    runs/<run>/updates/            accepted updates of the exchange that goes on (`update_spool`)
    runs/<run>/run.json            the record, as in the job's own folder
    runs/<run>/result/best-0003/   the best adapter so far: that of round 3
    runs/<run>/process.json        who runs it: job, process, attempt
    runs/<run>/lock                held while a process runs it; the system lets go of it if that dies
    runs/<run>/pause               asks for an end after the present round; whoever reads it removes it

A run is called by the id of its first job. A later job goes on with it by the argument `resumes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from medflare.core.errors import ConfigError
from medflare.wire.process_file import FolderLock, read_holder, write_holder
from medflare.wire.storage import RUNS, run_name

STATE, UPDATES, RECORD, RESULT = "state", "updates", "run.json", "result"
PAUSE = "pause"


@dataclass(slots=True)
class RunFolder:
    """One run's folder at the server.

    Attributes:
        attempt: how many processes have run it before this one.
    """

    path: Path
    attempt: int = 0
    _lock: FolderLock = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._lock = FolderLock(self.path)

    @classmethod
    def of(cls, storage: Path, job: str, resumes: str = "") -> RunFolder:
        """Return the folder of a job's run; ConfigError where a name is none."""
        return cls(storage / RUNS / run_name(job, resumes))

    @property
    def state(self) -> Path:
        """The folder of the run's states."""
        return self.path / STATE

    @property
    def updates(self) -> Path:
        """The folder of accepted updates of the exchange that goes on."""
        return self.path / UPDATES

    @property
    def record(self) -> Path:
        """The run's record."""
        return self.path / RECORD

    def open(self, job: str, resuming: bool) -> None:
        """Hold the run for this process, and write down who runs it.

        Raises:
            ConfigError: another process runs it, or there is nothing to go on with.
        """
        if resuming and not self.record.is_file():
            raise ConfigError(
                f"there is no run {self.path.name} to go on with at this server. `medflare runs list` shows "
                "those that there are."
            )
        if not resuming and self.record.is_file():
            raise ConfigError(
                f"there is a run {self.path.name} at this server already. `medflare resume {self.path.name}` "
                "goes on with it; `medflare runs prune` removes it."
            )
        if not self._lock.acquire():
            raise ConfigError(
                f"run {self.path.name} is running: {read_holder(self.path)}. Abort that job first; if nobody "
                "can, `medflare runs reconcile` ends what is left of it."
            )
        self.attempt = write_holder(self.path, job).attempt
        self.take_pause()  # asked of a process that died before it could: this one is here to go on

    def close(self) -> None:
        """Let go of the run."""
        self._lock.release()

    def ask_for_pause(self) -> None:
        """Have the run end after its present round."""
        (self.path / PAUSE).touch()

    def take_pause(self) -> bool:
        """Return whether somebody asked for a pause, and forget it."""
        file = self.path / PAUSE
        asked = file.exists()
        file.unlink(missing_ok=True)
        return asked
