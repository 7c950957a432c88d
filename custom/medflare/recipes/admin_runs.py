# SPDX-License-Identifier: Apache-2.0
"""An admin's commands for runs at a server: go on with one, watch it to its end, pause it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError, DataError, RunError
from medflare.core.run_record import read_record
from medflare.federation.server.controller import PAUSE_TOPIC
from medflare.recipes.admin_downloads import check_signed
from medflare.recipes.admin_jobs import WAITS_SHOWN, WATCH_SECONDS, never_began, wait_for_job
from medflare.recipes.admin_session import ServerAwayError, admin_session, asking_session
from medflare.recipes.admin_submissions import check_submission
from medflare.recipes.job import CLIENT_CONFIG, SERVER_CONFIG
from medflare.wire.durable import read_json, write_json

ABORTED = "FINISHED:ABORTED"
"""FLARE's word on a job that an admin ended."""


def resume_job(kit: Path, run: str) -> str:
    """Submit the job of a run again, so that it goes on where it was; return the new job's id.

    Args:
        run: FLARE's id of its first job.

    Raises:
        ConfigError: the kit is none.
        RunError: the server has no such job, or it never began; the server shows none that an admin signed or
            another than this kit submitted under that id, or takes no new one.
    """
    with admin_session(kit) as session, tempfile.TemporaryDirectory(prefix="medflare-resume-") as scratch:
        try:
            if never_began(session, run):
                raise RunError(
                    f"job {run} never began, so there is no run to go on with. Submit the job again. "
                    f"{WAITS_SHOWN}"
                )
            place = session.download_job_result(run, destination=scratch)
            folder = _job_folder(Path(place))
            check_signed(folder, kit)
            check_submission(kit, run, folder)
            return str(session.submit_job(str(point_to_run(folder, run))))
        except (ConfigError, RunError):
            raise
        except Exception as error:
            raise RunError(
                f"run {run} cannot be gone on with ({type(error).__name__}: {error}). `list_jobs` in FLARE's "
                "console shows the jobs that the server knows."
            ) from None


def watch_job(kit: Path, run: str, job: str, say: Callable[[str], None]) -> str:
    """Wait for the end of a job; while its processes die, go on with its run as often as the job allows.

    Args:
        run: FLARE's id of the run's first job. job: of the one that runs now.
        say: takes each job that is submitted.

    Returns:
        FLARE's id of the last job.

    Raises:
        RunError: the run did not complete, and this does not change that.
    """
    resumed = 0
    while True:
        status = wait_for_job(kit, job)
        with tempfile.TemporaryDirectory(prefix="medflare-watch-") as scratch:
            place = _fetched(kit, job, scratch)
            ended, reason = _how_it_ended(place)
            if ended in ("completed", "paused"):
                return job
            folder = _job_folder(place)
            if ended == "failed" or status == ABORTED or resumed >= _resumptions_allowed(folder):
                raise RunError(f"run {run} is {ended} ({status}). {reason}")
            check_signed(folder, kit)  # else a server could have the run go on for ever
        job, resumed = resume_job(kit, run), resumed + 1
        say(job)


def _resumptions_allowed(folder: Path) -> int:
    """Return how often a run whose processes died goes on by itself, as a server's copy of its job says."""
    try:
        number = read_json(folder / SERVER_CONFIG)["workflows"][0]["args"].get("max_resumptions", 0)
    except (ValueError, LookupError, TypeError, AttributeError):
        number = None
    if type(number) is not int or number < 0:
        raise RunError("the server's copy of the job does not say how often the run goes on by itself.")
    return number


def _fetched(kit: Path, job: str, scratch: str) -> Path:
    """Return what an ended job left, downloaded; a server that is started again meanwhile is waited for."""
    while True:
        with (
            suppress(ServerAwayError),
            asking_session(kit, f"the result of job {job} was not downloaded") as session,
        ):
            return Path(session.download_job_result(job, destination=scratch))
        time.sleep(WATCH_SECONDS)


def _how_it_ended(place: Path) -> tuple[str, str]:
    """Return (status, reason) of the record in a downloaded result; `running` where its process died."""
    for file in sorted(place.glob("workspace/run.json")):
        with suppress(DataError):
            record = read_record(file)
            return record.status, record.reason
    return "running", "The server wrote no record."


def pause_job(kit: Path, job: str) -> None:
    """Ask a running job to end after its present round."""
    with admin_session(kit) as session:
        try:
            session.do_app_command(job, PAUSE_TOPIC, {})
        except Exception as error:
            raise RunError(
                f"job {job} cannot be paused ({type(error).__name__}: {error}). Is it running?"
            ) from None


def point_to_run(folder: Path, run: str) -> Path:
    """Have both configurations of a job folder name the run that the job goes on with."""
    server, client = read_json(folder / SERVER_CONFIG), read_json(folder / CLIENT_CONFIG)
    server["workflows"][0]["args"]["resumes"] = run
    client["executors"][0]["executor"]["args"]["resumes"] = run
    write_json(folder / SERVER_CONFIG, server)
    write_json(folder / CLIENT_CONFIG, client)
    return folder


def _job_folder(place: Path) -> Path:
    """Return the job folder in a downloaded result."""
    for meta in sorted(place.rglob("meta.json")):
        content: Any = read_json(meta)
        if (meta.parent / SERVER_CONFIG).is_file() and isinstance(content, dict):
            return meta.parent
    raise ConfigError(f"{place.name}: the server's copy of the job holds no job of medflare.")
