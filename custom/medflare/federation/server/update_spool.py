# SPDX-License-Identifier: Apache-2.0
"""Accepted updates of the exchange that goes on, on the server's disk until its result is in a state.

The memory of the server does not depend on the order in which sites answer: an update that waits for its turn
waits on the disk. And a run that goes on after a crash does not ask a site again whose update was accepted:
the copy is used if it is of the very same request, and is validated like any reply.

    runs/<run>/updates/0003/site-1.safetensors      as it travelled, with its facts and a digest

Copies are not forced to the disk: one that a power cut damages is noticed by its digest, and its site is
asked again. Where a disk takes no copies they stay in memory.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError

from medflare.core.errors import UpdateError
from medflare.core.run_record import RecordModel
from medflare.egress.failures import MessageError
from medflare.protocol.messages import FIT, Reply
from medflare.protocol.replies import check_facts
from medflare.wire.disk_space import DiskFullError
from medflare.wire.files import DamagedFileError, load_tensors, save_tensors

ENDING = ".safetensors"


class Stored(RecordModel):
    """Facts stored beside an update's tensors.

    Attributes:
        request: digest of what the site was asked, `messages.work_digest`; empty for an update of an earlier
            exchange, which only this process may use.
        trip: seconds from the task's leaving to the reply's coming.
    """

    request: str
    round: int
    facts: dict[str, object]
    trip: float


class UpdateSpool:
    """Holds the accepted updates of one exchange.

    Args:
        folder: for all exchanges of the run; None keeps updates in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.root = folder
        self.logger = logging.getLogger(__name__)
        self._request = ""
        self._folder: Path | None = None
        self._in_memory: dict[str, Reply] = {}

    def begin(self, exchange: int, request: str = "") -> None:
        """Start an exchange: copies of its own are kept, all others are removed.

        Args:
            request: digest of what its sites are asked; empty where no copy may be used after a crash.
        """
        self._request, self._folder = request, None
        self._in_memory = {}
        if self.root is None:
            return
        folder = self.root / f"{exchange:04d}"
        for other in self.root.glob("*"):
            if other != folder or not request:
                shutil.rmtree(other, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # updates of single sites are nobody else's
            self._folder = folder
        except OSError as error:
            self.logger.warning(f"updates stay in memory: {error}")

    def kept(self, sites: Iterable[str]) -> dict[str, Reply]:
        """Return the updates of these sites that an earlier process accepted for the very same request."""
        found = {}
        for site in sites if self._request else ():
            path = self._path(site)
            if path is not None and path.exists():
                try:
                    stored, reply = _read(path)
                    check_facts(FIT, reply.facts, site)
                except (UpdateError, MessageError, OSError) as error:
                    self.logger.warning(f"{site} is asked again: {error}")
                    continue
                if stored.request == self._request:
                    found[site] = reply
        return found

    def keep(self, site: str, reply: Reply, repeatable: bool = True) -> None:
        """Keep an accepted update.

        Args:
            repeatable: whether it is of this exchange's request, so that a resumed run may use it.
        """
        path = self._path(site)
        if path is not None:
            stored = Stored(
                request=self._request if repeatable else "",
                round=reply.round,
                facts=reply.facts,
                trip=reply.trip,
            )
            try:
                save_tensors(path, reply.tensors, stored.model_dump(), forced=False)
                return
            except (OSError, DiskFullError, SafetensorError) as error:
                self.logger.warning(f"updates stay in memory: {error}")
        self._in_memory[site] = reply

    def take(self, site: str) -> Reply:
        """Return an update that was kept, and hold it in memory no longer.

        Raises:
            UpdateError: the disk does not give back what was written.
        """
        if site in self._in_memory:
            return self._in_memory.pop(site)
        path = self._path(site)
        assert path is not None, "only what was kept is taken"
        try:
            return _read(path)[1]
        except OSError as error:
            raise UpdateError(f"the server's copy of it cannot be read: {error}") from error

    def clear(self) -> None:
        """Remove all copies: the result of the exchange is in a state, or the exchange was lost."""
        self._in_memory = {}
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)

    def _path(self, site: str) -> Path | None:
        return self._folder / f"{site}{ENDING}" if self._folder else None


def _read(path: Path) -> tuple[Stored, Reply]:
    """Return a copy; UpdateError where it is not what was written."""
    try:
        tensors, values = load_tensors(path)
        stored = Stored.model_validate(values)
    except (DamagedFileError, ValidationError) as error:
        raise UpdateError(f"the server's copy of it is damaged: {error}") from error
    return stored, Reply(stored.round, dict(stored.facts), tensors, trip=stored.trip)
