# SPDX-License-Identifier: Apache-2.0
"""Checks of what a server says of files that an admin fetches, before FLARE's client acts on it.

FLARE's client (2.9) joins names of files and of a transfer, as the server says them, to a folder of the
admin's machine; it deletes that folder where a transfer fails; and where a server offers no files it moves
whatever place the server calls the result's. So a server could write, delete and move what the admin can, and
send until the disk is full.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

from pydantic import AfterValidator, Field, ValidationError

from medflare.core.errors import RunError
from medflare.federation.engine import Signal
from medflare.federation.signed_files import read_signers
from medflare.protocol.strict_model import RunId, SiteName, StrictModel, in_words

MOST_FILES = 10_000
KEPT_FREE = 1_000_000_000
"""Bytes of a disk that no download may take."""


def _relative(name: str) -> str:
    """Return a name that lies below the folder it is joined to."""
    climbs = any(part in ("", ".", "..") for part in name.split("/"))
    if climbs or not name.isprintable() or "\\" in name or ":" in name:
        raise ValueError("is no name of a file below a folder")
    return name


_FileName = Annotated[str, Field(max_length=500), AfterValidator(_relative)]


class _Offer(StrictModel):
    """Files that a server offers for download, in FLARE's words; each has a name and a number."""

    tx_id: RunId
    source_fqcn: SiteName
    files: Annotated[list[tuple[_FileName, RunId]], Field(min_length=1, max_length=MOST_FILES)]


class DiskWatch(Signal):
    """FLARE's sign that a session ends, here of a full disk too; FLARE looks at it after each part of a file.

    Args:
        ends: the session's own sign.
        folder: into which files are moved, when they have come into the temporary one.
    """

    def __init__(self, ends: Signal, folder: Path) -> None:
        super().__init__(ends)
        self._folder, self.full = folder, ""

    @property
    def triggered(self) -> bool:
        """Whether the session ends, or a disk has no more than `KEPT_FREE` left."""
        if not self.full and not super().triggered:
            self.take(0)
        return bool(self.full) or super().triggered

    def take(self, size: int) -> bool:
        """Return whether `size` more bytes leave enough free; where they do not, the session ends."""
        for folder in (Path(tempfile.gettempdir()), self._folder):
            free = shutil.disk_usage(folder).free
            if free - size < KEPT_FREE:
                self.full = (
                    f"{free // 10**6:,} MB are free in {folder}, and {KEPT_FREE // 10**6:,} must stay so: "
                    "the download was ended and nothing of it kept. Make room, or ask the server's people "
                    "how large the result is."
                )
                self.trigger(self.full)
        return not self.full


def check_downloads(api: Any, folder: Path) -> DiskWatch:
    """Have an admin's client of FLARE refuse what no honest server offers, and leave some of the disk free.

    Args:
        api: the client of a session; its `server_execute` asks the server.
        folder: of the admin's kit, below which FLARE puts what comes.

    Returns:
        What ends a download; its `full` says why, if it did.
    """
    ask = api.server_execute
    api.session_abort_signal = watch = DiskWatch(api.session_abort_signal, folder)
    _check_archives(watch)

    def ask_and_check(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        meta = answer.get("meta") if isinstance(answer, Mapping) else None
        if isinstance(meta, Mapping):
            if "location" in meta:
                raise RunError(
                    "the server names a place on this machine for a result, which no honest one does; "
                    "nothing was moved. Ask who runs the server."
                )
            if meta.get("files"):
                _check_offer(meta)
        return answer

    api.server_execute = ask_and_check
    return watch


def _check_archives(watch: DiskWatch) -> None:
    """Have FLARE's client open no archive that would fill the disk; it opens all that come."""
    from nvflare.fuel.hci.client import file_transfer
    from nvflare.fuel.utils.zip_utils import unzip_all_from_file

    def unzip(file: str, folder: str) -> None:
        with ZipFile(file) as archive:  # no entry gives more bytes than it says here
            size = sum(entry.file_size for entry in archive.infolist())
        if not watch.take(size):
            raise RunError(watch.full)
        unzip_all_from_file(file, folder)

    file_transfer.unzip_all_from_file = unzip


def _check_offer(meta: Mapping[str, Any]) -> None:
    offered = {name: meta.get(name) for name in _Offer.model_fields}
    if isinstance(offered["files"], list):
        offered["files"] = [tuple(file) if isinstance(file, list) else file for file in offered["files"]]
    try:
        _Offer.model_validate(offered)
    except ValidationError as error:
        raise RunError(
            f"the server offers files as no honest one does ({in_words(error)}); nothing was written. Ask "
            "who runs the server."
        ) from None


def check_signed(folder: Path, kit: Path) -> None:
    """Check that a job folder of the server's is one that an admin of this federation signed, unchanged.

    Raises:
        RunError: it is not.
    """
    if not read_signers(folder, kit):
        raise RunError(
            "the server's copy of the job is not what an admin of this federation signed; nothing was "
            "submitted. Ask who runs the server; `medflare job submit` sends a job folder of your own as a "
            "new run."
        )
