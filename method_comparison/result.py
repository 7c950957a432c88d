# SPDX-License-Identifier: Apache-2.0
"""One result for each method, partition and seed, and the folder that holds them.

A unit trains in `SEED.partial`, which becomes `SEED` when its result is written: a folder that is there is
complete. What an interrupted unit left is taken up or thrown away (`progress`). A lock lets several processes
share the units of one comparison.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeFloat, NonNegativeInt, ValidationError

from medflare.core.errors import ConfigError

FILE = "result.json"


class TimeToTarget(BaseModel):
    """When a run reached a target: `seconds`, or that it had not by then (right-censored)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    seconds: NonNegativeFloat
    reached: bool


class Measured(BaseModel):
    """What a task measures of one unit.

    Attributes:
        values: metric -> score; a metric that does not apply is left out.
        times: target -> when it was reached.
        curves: name -> points (seconds or rounds, value).
        bytes: of all messages of the run, both ways; None where nothing was counted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    values: dict[str, FiniteFloat] = {}
    times: dict[str, TimeToTarget] = {}
    curves: dict[str, list[tuple[FiniteFloat, FiniteFloat]]] = {}
    bytes: NonNegativeInt | None = None


class Result(Measured):
    """A unit that is complete.

    Attributes:
        scores: place -> metric -> its value over all test cases, of the tables that have scores by study.
        settings: fingerprint of everything in the configuration that decides its numbers.
        seconds: processor seconds of the training and testing.
        commit: of the program, "" where it is not known.
    """

    schema_version: Literal[1] = 1
    comparison: str
    partition: str
    method: str
    seed: NonNegativeInt
    scores: dict[str, dict[str, FiniteFloat]] = {}
    settings: str
    seconds: NonNegativeFloat
    commit: str = ""


class ResultStore:
    """The results of one comparison below `folder`: PARTITION/METHOD/SEED/result.json."""

    def __init__(self, folder: Path, comparison: str) -> None:
        self.folder, self.comparison = folder / comparison, comparison

    def unit_folder(self, partition: str, method: str, seed: int) -> Path:
        """Return where a complete unit has its result and its other files."""
        return self.folder / partition / method / str(seed)

    def read(self, partition: str, method: str, seed: int, settings: str) -> Result | None:
        """Return the result of a unit; None where it is not complete.

        Raises:
            ConfigError: the file is of another schema, is damaged, is of another unit, or was made with other
                settings than the configuration has now.
        """
        path = self.unit_folder(partition, method, seed) / FILE
        if not path.is_file():
            return None
        try:
            found = Result.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise ConfigError(
                f"{path}: is no result of schema 1: {where}: {first['msg']}. Remove its folder to train the "
                "unit again."
            ) from None
        stated = (found.comparison, found.partition, found.method, found.seed)
        if stated != (self.comparison, partition, method, seed):
            raise ConfigError(
                f"{path}: is the result of {'/'.join(map(str, stated))} and would be counted twice. Remove "
                "the copied folder."
            )
        if found.settings != settings:
            raise ConfigError(
                f"{path}: was made with other settings than the configuration has now. Remove its folder to "
                "train the unit again, or give another --out."
            )
        return found

    @contextmanager
    def claim(self, partition: str, method: str, seed: int) -> Iterator[Path | None]:
        """Give a folder to train in, or None where another process trains this unit or has done so.

        The lock is released by the operating system when a process dies.
        """
        place = self.unit_folder(partition, method, seed)
        place.parent.mkdir(parents=True, exist_ok=True)
        with (place.parent / f"{seed}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if (place / FILE).is_file():
                yield None
                return
            partial = place.with_name(f"{seed}.partial")
            partial.mkdir(exist_ok=True)
            yield partial

    def complete(self, partial: Path, result: Result) -> None:
        """Write the result and make the folder a complete unit."""
        (partial / FILE).write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
        partial.rename(self.unit_folder(result.partition, result.method, result.seed))
