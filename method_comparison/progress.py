# SPDX-License-Identifier: Apache-2.0
"""What an interrupted unit has done, so that the same command goes on after its last whole round."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

import medflare
from medflare.core.tensors import State
from medflare.in_process.checkpoint import LoopCheckpoint
from medflare.wire.durable import write_json

FOLDER = "progress"
ERROR = "error.txt"
"""In the folder of a unit that failed."""
HERE = Path(__file__).parent
CODE = (Path(medflare.__file__).parent, HERE / "tasks", HERE.parent / "jobs")
CODE_SUFFIXES = (".py", ".json", ".yaml", ".safetensors")
"""Folders and endings of the program's files that decide, beside a configuration, what a unit trains."""


class OutOfTimeError(Exception):
    """The time that a command was given is over; what it has trained is kept."""


class Done(BaseModel):
    """`progress.json`: of which settings and program the progress is, and its processor seconds so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    of: str
    seconds: NonNegativeFloat


class UnitProgress:
    """The folder `progress` of a unit that trains; it goes when the unit is complete.

    Attributes:
        goes_on: whether an interrupted training left rounds that need not be trained again.
    """

    def __init__(
        self, unit_folder: Path, settings: str, ends: float = math.inf, inputs: Sequence[Path] = ()
    ) -> None:
        """Take up what an interrupted training left in a unit's folder, or empty the folder.

        Args:
            settings: fingerprint of all that the configuration decides. Progress of other settings, of
                another program or of other inputs is thrown away: half of a result by each would be the
                result of neither.
            ends: moment of `time.monotonic` after which the training stops when a round is done.
            inputs: folders that the unit reads beside the program: models and public data.
        """
        self.ends = ends
        self.folder = unit_folder / FOLDER
        self._of = "-".join([settings, program(), *([digest(inputs)] if inputs else [])])
        found, self._before = self._read(), 0.0
        same = found is not None and found.of == self._of
        self.goes_on = same and has_checkpoint(unit_folder)
        if found is not None and self.goes_on:
            self._before = found.seconds
            (unit_folder / ERROR).unlink(missing_ok=True)
        else:
            shutil.rmtree(unit_folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begin()
        self.note()

    def begin(self) -> None:
        """Start to count: the preparation of what units share is no part of any of them."""
        self._began = time.process_time()

    @property
    def _file(self) -> Path:
        return self.folder / "progress.json"

    def _read(self) -> Done | None:
        try:
            return Done.model_validate_json(self._file.read_bytes())
        except (OSError, ValidationError):
            return None

    def seconds(self) -> float:
        """Return the processor seconds of the unit, those before an interruption included."""
        return self._before + time.process_time() - self._began

    def note(self) -> None:
        """Write how long the unit has taken for what its checkpoints hold."""
        write_json(self._file, Done(of=self._of, seconds=self.seconds()).model_dump())

    def checkpoint(self, name: str = "all") -> LoopCheckpoint:
        """Return the checkpoint of one of the unit's federations."""
        return _UnitCheckpoint(self.folder / f"{name or 'all'}.safetensors", self)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _UnitCheckpoint(LoopCheckpoint):
    def __init__(self, path: Path, progress: UnitProgress) -> None:
        super().__init__(path)
        self._progress = progress

    def write(self, rounds_done: int, tensors: State, values: Any) -> None:
        super().write(rounds_done, tensors, values)
        self._progress.note()
        if time.monotonic() > self._progress.ends:
            raise OutOfTimeError


def has_checkpoint(unit_folder: Path) -> bool:
    """Return whether an interrupted training left rounds in a unit's folder."""
    return any((unit_folder / FOLDER).glob("*.safetensors"))


@cache
def program() -> str:
    """Return a digest of the code that trains units; documentation and tests are no part of it."""
    return digest(CODE, CODE_SUFFIXES)


def digest(folders: Sequence[Path], suffixes: tuple[str, ...] = ("",)) -> str:
    """Return a digest of names and contents of the files that end so; every file ends with ""."""
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.name.endswith(suffixes) and p.is_file()):
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as stream:
                found.update(json.dumps([name, hashlib.file_digest(stream, "sha256").hexdigest()]).encode())
    return found.hexdigest()
