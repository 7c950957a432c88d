# SPDX-License-Identifier: Apache-2.0
"""A FedJob that is one of our folders, so that FLARE's SimEnv and ProdEnv can run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from medflare.federation.engine_jobs import FedJob
from medflare.recipes.job import Job, write_to_temporary
from medflare.recipes.simulator_process import launch


class FolderJob(FedJob):
    """A FedJob that exports and simulates the folder as written; FedJob's own generator is not used."""

    def __init__(
        self,
        job: Job,
        workspace: Path | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(name=workspace.name if workspace else job.title, min_clients=job.n_clients)
        self.description, self.on_event = job, on_event

    def export_job(self, job_root: str) -> None:
        """Write the folder below `job_root`."""
        self.description.write(Path(job_root) / self.name)

    def simulator_run(
        self,
        workspace: str,
        n_clients: int | None = None,
        clients: list[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
        log_config: str | None = None,
    ) -> int:
        """Run the folder. The caller judges the outcome from the files, as the simulator returns 0 always."""
        sites = clients or [f"site-{i + 1}" for i in range(n_clients or self.description.n_clients)]
        with write_to_temporary(self.description) as holder:
            folder = Path(holder) / self.description.title
            launch(folder, Path(workspace), sites, threads, self.on_event)
        return 0
