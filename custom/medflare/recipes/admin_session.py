# SPDX-License-Identifier: Apache-2.0
"""An admin's session at a server, through FLARE's admin API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from medflare.core.errors import ConfigError, RunError
from medflare.egress.failures import clean_text
from medflare.recipes.admin_downloads import check_downloads
from medflare.wire.durable import read_json

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

SECONDS = 30.0
"""For an answer of a busy server, or for a megabyte of a job to arrive; by itself FLARE waits five."""


class ServerAwayError(RunError):
    """The server does not answer, or closed the session: it may later, and the job there may go on."""


@contextmanager
def admin_session(kit: Path) -> Iterator[Session]:
    """Provide a session at the server, as the admin to whom a kit belongs.

    Raises:
        ConfigError: the folder is no admin's kit.
        ServerAwayError: the server does not answer, or refuses.
    """
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        user = str(read_json(kit / "startup" / "fed_admin.json")["admin"]["username"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{kit}: is no admin's startup kit (startup/fed_admin.json names no user). Name the folder of "
            "one."
        ) from None
    try:
        with redirect_stdout(sys.stderr):  # FLARE prints how it logs in
            wait_for_uploads()
            session = new_secure_session(user, str(kit), timeout=SECONDS)
            session.set_timeout(SECONDS)
            watch = check_downloads(session.api, kit)
    except Exception as error:  # FLARE raises what it likes where a server is down
        raise ServerAwayError(
            f"no session as {user} ({type(error).__name__}: {error}). Is the server running, and can this "
            "machine reach it?"
        ) from None
    try:
        with redirect_stdout(sys.stderr):
            yield session
    except Exception:
        if watch.full:
            raise RunError(watch.full) from None
        raise
    finally:
        session.close()


def wait_for_uploads() -> None:
    """Give each megabyte of a job that an admin of this process submits `SECONDS`, not five seconds.

    FLARE has no setting for it, and a job of which a part comes too late is lost.
    """
    from nvflare.app_common.streamers.file_streamer import FileStreamer
    from nvflare.fuel.hci.client import api

    api.FileStreamer = SimpleNamespace(stream_file=partial(FileStreamer.stream_file, chunk_timeout=SECONDS))


@contextmanager
def asking_session(kit: Path, otherwise: str) -> Iterator[Session]:
    """Provide an admin's session; what FLARE raises in it becomes a RunError that begins with `otherwise`.

    Raises:
        ConfigError: the folder is no admin's kit.
        ServerAwayError: the server does not answer. RunError: it has no such job, or refuses.
    """
    from nvflare.fuel.flare_api.api_spec import NoConnection, NoReply, SessionClosed

    with admin_session(kit) as session:
        try:
            yield session
        except (ConfigError, RunError):
            raise
        except Exception as error:  # FLARE has a dozen classes without a common base
            why = clean_text(f"{type(error).__name__}: {error}", 300)
            if isinstance(error, NoConnection | NoReply | SessionClosed):
                raise ServerAwayError(
                    f"{otherwise}: the server does not answer ({why}). Is it running, and can this machine "
                    "reach it?"
                ) from None
            raise RunError(f"{otherwise} ({why}). `medflare job status` lists the jobs there are.") from None
