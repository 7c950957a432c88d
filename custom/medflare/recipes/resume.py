# SPDX-License-Identifier: Apache-2.0
"""Goes on with the run of a simulator's workspace that ended before its time."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import read_record
from medflare.federation.server.run_folder import PAUSE, RECORD
from medflare.recipes.job import Job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override
from medflare.recipes.workspace_lock import state_of
from medflare.wire.durable import read_json, write_json
from medflare.wire.process_file import in_use
from medflare.wire.storage import FILE, RUNS

SIMULATED = "simulate_job"
"""FLARE's id of every job in its simulator, and so the name of a workspace's run."""
REQUEST, PARTIES = "request", "parties"


class StoredRequest(BaseModel):
    """Options of `medflare run` beside the job, which a resumed run needs again.

    Attributes:
        sites: who trains. unseen: who is tested afterwards.
        local_baseline: whether each site then trains alone, too.
    """

    model_config = ConfigDict(extra="forbid")

    sites: list[str]
    unseen: list[str] = []
    local_baseline: bool = False


class WorkspaceState:
    """Folder of what outlives a run, beside the workspace, which FLARE's simulator wipes.

    Args:
        workspace: of the simulator.

    Attributes:
        folder: `<workspace>.state`; parties: states of the server and the sites in it.
    """

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.folder = state_of(workspace)
        self.parties = self.folder / PARTIES

    @property
    def run(self) -> Path:
        """The server's folder of the run."""
        return self.parties / "server" / RUNS / SIMULATED

    def begin(self, job: Job, request: StoredRequest) -> None:
        """Forget an earlier run, and write down what this one was asked for."""
        for old in (self.parties, self.folder / REQUEST):  # the lock beside them stays
            shutil.rmtree(old, ignore_errors=True)
        job.write(self.folder / REQUEST / job.title)
        write_json(self.folder / f"{REQUEST}.json", request.model_dump())
        self.point_to()

    def point_to(self) -> None:
        """Tell the server and the sites of the workspace where they keep their states."""
        write_json(self.workspace / "local" / FILE, {"folder": str(self.parties)})

    def again(self) -> tuple[Job, StoredRequest]:
        """Return the job that goes on with the run, and what was asked for.

        Raises:
            ConfigError: there is no run to go on with.
        """
        job, request = self.requested()
        if (self.run / RECORD).is_file():
            job = override(job, {"resumes": SIMULATED})
        return job, request

    def requested(self) -> tuple[Job, StoredRequest]:
        """Return the job as it began, and what was asked for beside it.

        Raises:
            ConfigError: the workspace holds none.
        """
        try:
            request = StoredRequest.model_validate(read_json(self.folder / f"{REQUEST}.json"))
            holder = next(iter(sorted((self.folder / REQUEST).iterdir())))
        except (OSError, ValueError, ValidationError, StopIteration):
            raise ConfigError(
                f"{self.workspace}: holds no run to go on with (its state would lie in {self.folder}). Name "
                "the workspace of a run, or start one without --resume."
            ) from None
        return read_job(holder), request

    def completed(self) -> bool:
        """Return whether the run has done all its rounds and its final tests."""
        try:
            return read_record(self.run / RECORD).status == "completed"
        except DataError:
            return False

    def died(self) -> bool:
        """Return whether processes of the run ended before their time: the server's, or a site's, for which
        FLARE stops the job. Whoever stops it himself does so by a signal, or has asked for a pause."""
        if (self.run / PAUSE).exists():
            return False
        try:
            return read_record(self.run / RECORD).status in ("running", "stopped")
        except DataError:
            return False  # it had not begun: what is wrong there would be wrong again

    def pause(self) -> None:
        """Ask the run to end after its present round.

        Raises:
            ConfigError: there is none, or it is not running.
        """
        if not (self.run / RECORD).is_file():
            raise ConfigError(f"{self.workspace}: holds no run.")
        if not in_use(self.run):
            raise ConfigError(
                f"{self.workspace}: its run is not running, so there is nothing to pause. `medflare status` "
                "shows how it ended."
            )
        (self.run / PAUSE).touch()
