# SPDX-License-Identifier: Apache-2.0
"""Checks of what a server says of files that an admin fetches, before FLARE's client acts on it.

FLARE's client (2.9) joins names of files and of a transfer, as the server says them, to a folder of the
admin's machine; it deletes that folder where a transfer fails; and where a server offers no files it moves
whatever place the server calls the result's. So a server could write, delete and move what the admin can.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from medflare.core.errors import RunError
from medflare.federation.signed_files import read_signers
from medflare.protocol.strict_model import RunId, SiteName, StrictModel, in_words

MOST_FILES = 10_000


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


def check_downloads(api: Any) -> None:
    """Have an admin's client of FLARE refuse files with names, and places, that no honest server gives.

    Args:
        api: the client of a session; its `server_execute` asks the server.
    """
    ask = api.server_execute

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
