# SPDX-License-Identifier: Apache-2.0
"""The file from which an interrupted federation in one process goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.tensors import State
from medflare.wire.files import DamagedFileError, load_newest, save_tensors

LOGGER = logging.getLogger(__name__)


class LoopCheckpoint:
    """Holds a federation as it was after its last whole round; an interrupted round is trained again.

    Attributes:
        noted: JSON values that the caller keeps beside it, such as one for each round: what is appended
            before a round ends is there again when the federation goes on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.noted: list[Any] = []

    def write(self, rounds_done: int, tensors: State, values: Mapping[str, Any]) -> None:
        """Write what `read` returns; the file of the round before stays beside it, should it be damaged."""
        facts = {"rounds_done": rounds_done, "loop": dict(values), "noted": self.noted}
        save_tensors(self.path, tensors, facts, keep_previous=True)

    def read(self) -> tuple[int, State, dict[str, Any]] | None:
        """Return the rounds that are done, tensors and values; None where there is no file that is whole."""
        try:
            found = load_newest(self.path)
        except DamagedFileError as error:
            LOGGER.warning("%s The training begins anew.", error)
            return None
        if found is None:
            return None
        tensors, facts = found
        self.noted[:] = facts["noted"]
        return int(facts["rounds_done"]), tensors, facts["loop"]
