# SPDX-License-Identifier: Apache-2.0
"""An admin's memory of the jobs that a kit submitted, so that a server cannot show another one instead."""

from __future__ import annotations

import hashlib
from pathlib import Path

from medflare.core.errors import RunError
from medflare.federation.site.submissions import SIGNATURES
from medflare.wire.disk_space import DiskFullError
from medflare.wire.durable import read_json, write_json
from medflare.wire.storage import NAME

SUBMITTED = "submitted"
OF_FLARE = (SIGNATURES, ".__nvfl_submitter.crt")
"""Files that FLARE adds to each folder of a job when it is signed."""


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a job folder, without FLARE's signatures."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in OF_FLARE)
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def remember_submission(kit: Path, job: str, files: dict[str, str]) -> None:
    """Write down what was submitted as this job of the server's.

    Args:
        job: the id that the server gave it.
        files: as `digests` returned them before the job was signed.

    Raises:
        RunError: the id is no plain name, and would become part of a path, or is that of an earlier job; or
            the kit's folder cannot be written to.
    """
    file = kit / SUBMITTED / f"{job}.json"
    if not NAME.fullmatch(job) or file.exists():
        raise RunError("the server gives the job an id that no honest one does. Ask who runs the server.")
    try:
        write_json(file, files)
    except (OSError, DiskFullError) as error:
        cause = str(error).rstrip(".")
        raise RunError(
            f"job {job} is submitted, but this kit cannot remember what was submitted: {file}: {cause}. "
            f"`medflare job status {job}` shows the job; do not submit it again."
        ) from None


def check_submission(kit: Path, run: str, folder: Path) -> None:
    """Check that a server's copy of a job is the one that this kit submitted under that id.

    What another admin submitted, or another copy of this kit, is not known here; the sites hold such a run
    against their own memory of it.

    Raises:
        RunError: it is another job, or the kit's own file of it cannot be read.
    """
    file = kit / SUBMITTED / f"{run}.json"
    if not NAME.fullmatch(run) or not file.is_file():
        return
    try:
        submitted = read_json(file)
    except ValueError:
        raise RunError(f"{file}: is damaged, so nobody can tell here what job {run} was.") from None
    if digests(folder) != submitted:
        raise RunError(
            f"the server shows another job than this kit submitted as {run}; nothing was submitted. Ask who "
            "runs the server; `medflare job submit` sends a job folder of your own as a new run."
        )
