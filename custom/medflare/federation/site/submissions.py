# SPDX-License-Identifier: Apache-2.0
"""A site's memory of signed submissions: as which job each came, so that a server cannot run one twice.

FLARE signs every file with fresh random numbers (RSA-PSS), so what is submitted twice has two signatures
of one configuration; a server has no key to make another.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from pathlib import Path

from medflare.egress.failures import MessageError
from medflare.protocol.strict_model import shown
from medflare.wire.durable import read_json, write_json
from medflare.wire.process_file import FolderLock
from medflare.wire.storage import NAME

SIGNATURES = ".__nvfl_sig.json"
"""FLARE's file of a folder's signatures: name -> signature in base64."""
SECONDS_TO_LOOK = 30.0


def read_signature(file: Path) -> str:
    """Return the digest of a file's signature, which was found valid before.

    Of the bytes and not of the text, of which there are many for the same bytes.
    """
    return hashlib.sha256(b64decode(read_json(file.parent / SIGNATURES)[file.name])).hexdigest()


def check_first(folder: Path, signature: str, job: str) -> None:
    """Check that a submission came to this site as this job and no other, and remember it.

    Args:
        folder: of this site's memory of submissions, for all of its jobs.
        signature: as `read_signature` returns it.

    Raises:
        MessageError: it was another job before, or what the site remembers cannot be read.
    """
    lock = FolderLock(folder)
    if not lock.acquire(SECONDS_TO_LOOK):
        raise MessageError("another job's process holds this site's memory of submitted jobs; ask again.")
    try:
        file = folder / f"{signature}.json"
        if not file.exists():
            write_json(file, {"job": job})
        first = _read(file)
    finally:
        lock.release()
    if first != job:
        raise MessageError(
            f"this submission came here before, as job {shown(first)}. One submission is one job: its author "
            "submits the job again, or goes on with the run (medflare resume)."
        )


def _read(file: Path) -> str:
    try:
        job = str(read_json(file)["job"])
    except (ValueError, KeyError, TypeError):
        job = ""
    if not NAME.fullmatch(job):
        raise MessageError(
            "this site's memory of submitted jobs is damaged; its people find the file in 'submissions' of "
            "the kit and may remove it after they have asked the job's author."
        )
    return job
