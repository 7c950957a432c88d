# SPDX-License-Identifier: Apache-2.0
"""Components of a kit's own `local/resources.json`. No job can name them: they are not in the allow-list.

FLARE builds them before anything else it does, with the kit's folder as working directory; relative folders
are therefore the kit's, wherever it was unpacked or mounted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.federation.engine import (
    EventType,
    FilesystemStorage,
    FLComponent,
    FLContext,
    FLContextKey,
    JobMetaKey,
    RunStatus,
    SimpleJobDefManager,
)
from medflare.federation.server.deployment_report import sites_without_the_job, write_report

SECURE_LOGGING = "NVFLARE_SECURE_LOGGING"


class SecureLogging(FLComponent):
    """Make FLARE name only an exception's type, in logs and in what it answers to the server.

    FLARE reads this from the environment, and a kit's start scripts are signed and cannot carry a variable.
    Job processes inherit the environment of the process that builds this.
    """

    def __init__(self) -> None:
        super().__init__()
        os.environ[SECURE_LOGGING] = "true"


class KitStorage(FilesystemStorage):
    """FLARE's storage in files, in a folder of the kit: its own default is /tmp."""

    def __init__(self, root_dir: str, uri_root: str = "/") -> None:
        super().__init__(root_dir=str(Path(root_dir).resolve()), uri_root=uri_root)


class KitJobManager(SimpleJobDefManager):
    """FLARE's job manager with its job store in a folder of the kit.

    It passes on to a job's own process which sites FLARE did not give the job to. When a server starts, it
    ends in FLARE's books the jobs that a killed process before it left as running: FLARE itself keeps them
    so for ever, and can then neither abort, delete nor download them.
    """

    def __init__(self, uri_root: str = "store/jobs", job_store_id: str = "job_store") -> None:
        super().__init__(uri_root=str(Path(uri_root).resolve()), job_store_id=job_store_id)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Mark as ended what no process of this server can be running: it has only just started."""
        super().handle_event(event_type, fl_ctx)
        if event_type != EventType.SYSTEM_START:
            return
        for job in self.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx):
            self.set_status(job.job_id, RunStatus.FINISHED_ABNORMAL, fl_ctx)
            self.logger.warning(
                f"job {job.job_id} was running when this server's process ended; it can be resumed with "
                f"'medflare resume {job.job_id}'"
            )

    def update_meta(self, jid: str, meta: Mapping[str, Any], fl_ctx: FLContext) -> None:
        """Keep facts of a job; those of its deployment, which come before its process starts, for the run."""
        super().update_meta(jid, meta, fl_ctx)
        detail = meta.get(JobMetaKey.JOB_DEPLOY_DETAIL.value)
        if not detail:
            return
        clients = [client.name for client in fl_ctx.get_engine().get_clients()]
        checked = fl_ctx.get_prop(FLContextKey.RESOURCE_CHECK_RESULT) or {}
        folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_run_dir(jid))
        try:
            write_report(folder, sites_without_the_job(detail, checked, clients))
        except OSError as error:  # the job can run without it
            self.logger.warning(f"the deployment of job {jid} could not be written: {error}")
