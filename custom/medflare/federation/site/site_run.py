# SPDX-License-Identifier: Apache-2.0
"""A running job at a site: its names, its folders, and what must outlive FLARE's own folder of it."""

from __future__ import annotations

import os
import re
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from medflare.egress import ledger
from medflare.egress.failures import MessageError
from medflare.federation.engine import FLContext
from medflare.federation.signed_files import ROOT_CERTIFICATE, Signer, read_signers
from medflare.federation.site.policy import job_meta, job_name
from medflare.federation.site.settings import ExecutorSettings
from medflare.federation.site.submissions import check_first, read_signature
from medflare.protocol.messages import Request
from medflare.protocol.strict_model import shown
from medflare.wire.disk_space import RESERVE_BYTES, DiskReserve
from medflare.wire.folders import make_folder
from medflare.wire.storage import LOCAL_STATE as STATES
from medflare.wire.storage import SUBMISSIONS, run_name, storage_folder
from medflare.worker import config as worker_config
from medflare.worker.config import LOCAL_STATE, PRIVACY, WorkerConfig, site_file

CLIENT_CONFIG = "config_fed_client.json"
"""FLARE's file of a job at a site, with the executor and its arguments."""


class SiteRun:
    """One job as FLARE's context of this moment has it. Nothing is looked up before it is asked for.

    Args:
        args: of the job's executor.
    """

    def __init__(self, fl_ctx: FLContext, args: ExecutorSettings) -> None:
        self._context, self._args = fl_ctx, args

    @property
    def site(self) -> str:
        """This site's name, by its certificate."""
        return str(self._context.get_identity_name())

    @property
    def job(self) -> str:
        """FLARE's id of the job, which the server made and which becomes part of paths here.

        Raises:
            MessageError: it is no plain name.
        """
        job = str(self._context.get_job_id())
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", job):
            raise MessageError(f"the job's id is {shown(job)}, expected letters, digits, '_' and '-'.")
        return job

    @property
    def job_name(self) -> str:
        """Name of the job, as its own configuration says, and else its meta.json; empty in neither."""
        return self._args.job or job_name(self._context)

    @property
    def meta(self) -> dict[str, Any]:
        """The job's meta.json; empty where FLARE does not know it."""
        return job_meta(self._context)

    @property
    def root(self) -> Path:
        """The startup kit's folder."""
        return Path(self._workspace.get_root_dir())

    @property
    def folder(self) -> Path:
        """FLARE's folder of the job at this site, which it empties when the job is deployed again."""
        return Path(self._workspace.get_run_dir(self.job))

    @property
    def signs(self) -> bool:
        """Whether jobs are signed here: in a startup kit, and not in a simulator."""
        return (self.root / ROOT_CERTIFICATE).is_file()

    def read_signers(self) -> list[Signer]:
        """Return the admins who signed the job's configuration at this site."""
        return read_signers(self._configuration, self.root)

    def check_submission(self) -> None:
        """Check that the job, which an admin signed, is not an earlier one under another id.

        Raises:
            MessageError: it is.
        """
        signature = read_signature(self._configuration / CLIENT_CONFIG)
        check_first(storage_folder(self.root, self.site) / SUBMISSIONS, signature, self.job)

    @property
    def state(self) -> Path:
        """Folder of what this site keeps of the run; no server can empty it."""
        return storage_folder(self.root, self.site) / STATES / run_name(self.job, self._args.resumes)

    @property
    def reserve(self) -> DiskReserve:
        """The space kept free for the trace and the ledger of a failure on a full disk."""
        return DiskReserve(self.folder)

    @property
    def _configuration(self) -> Path:
        return Path(self._workspace.get_app_config_dir(self.job))

    @property
    def _workspace(self) -> Any:
        return self._context.get_engine().get_workspace()

    def partners(self, request: Request) -> list[str]:
        """Return the names of the other sites of the run."""
        return [name for name in request.roster if name != self.site]

    def worker_config(self, request: Request) -> WorkerConfig:
        """Return what the worker is told when it starts."""
        return WorkerConfig(
            method=self._args.method,
            settings=self._args.settings,
            seed=request.seed,
            site=self.site,
            site_file=str(site_file(self.root, Path(self._workspace.get_site_config_dir()))),
            state_folder=str(self.state),
            cache_folder=str(self.root / "cache"),
            run_id=request.run_id,
            privacy_folder=str(storage_folder(self.root, self.site) / PRIVACY),
        )

    def ledger(self) -> Path:
        """Return the run's ledger, which is also found in FLARE's folder of the job.

        FLARE empties its folder when a server deploys the same job again; the ledger must outlive that.
        """
        file, shown_at = self.state / ledger.FILE, self.folder / ledger.FILE
        make_folder(file.parent)
        file.touch()
        if not shown_at.exists():
            shown_at.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, shown_at)
            except OSError:  # another disk, or a file system without links
                with suppress(OSError):
                    shown_at.symlink_to(file)
        return file

    def hold_state_space(self, request: Request) -> DiskReserve | None:
        """Keep space for the next local state in the site's own folder `state`, which may be on another disk.

        A worker that finds that disk full writes into this space, and where it cannot be taken again the next
        task is refused here, before anything is trained. Only for the run that this job is: a server could
        name any, and each would get a folder.

        Returns:
            The space; None where site.yaml names no such folder.

        Raises:
            DiskFullError: there is none, so nothing that would be written there is begun.
        """
        config = self.worker_config(request)
        if not Path(config.site_file).exists():
            return None
        site = worker_config.load_site_settings(config)
        if site.state is None:
            return None
        folder = worker_config.state_folder(config, site)
        last = folder / LOCAL_STATE
        held = DiskReserve(folder)
        held.hold(RESERVE_BYTES + (last.stat().st_size if last.exists() else 0))
        return held

    def log_trace(self, error: Exception) -> None:
        """Append the full trace to the site's `worker.log`, which FLARE does not stream."""
        folder = self.folder / "worker"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "worker.log").open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
