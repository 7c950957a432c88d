# SPDX-License-Identifier: Apache-2.0
"""Trains the units of a comparison that have no result yet."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from method_comparison.comparison_table import Run
from method_comparison.configuration import SCHEMA, Configuration, Selection, known, read_configuration
from method_comparison.progress import ERROR, OutOfTimeError, UnitProgress, has_checkpoint
from method_comparison.result import FILE, Result, ResultStore
from method_comparison.tasks import make_task
from method_comparison.tasks.base import AnyTask, Unit
from method_comparison.tasks.needed import NotHereError


@dataclass(frozen=True)
class Comparison:
    """A configuration whose settings the task has accepted, and what of it is wanted.

    Attributes:
        partitions, methods, seeds: those that are wanted.
        settings: of the task.
        own: method -> its own settings, of every method that the configuration has.
        reference: the method that all others are compared with; None: those of the configuration.
    """

    name: str
    configuration: Configuration
    task: AnyTask
    partitions: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Settings
    own: dict[str, Settings]
    reference: str | None = None

    @classmethod
    def read(cls, name: str, wanted: Selection | None = None, small: bool = False) -> Comparison:
        """Read a comparison and check all of its settings.

        Args:
            wanted: a part of it; what it leaves out is that of the whole, or of the `small` part.

        Raises:
            ConfigError: the configuration or the selection cannot be used; nothing was trained.
        """
        return cls.of(name, read_configuration(name), wanted, small)

    @classmethod
    def of(
        cls, name: str, configuration: Configuration, wanted: Selection | None = None, small: bool = False
    ) -> Comparison:
        """As `read`, of a configuration that is there already."""
        selection = configuration.small if small else Selection()
        given = (wanted or Selection()).model_dump(exclude_none=True)
        changed = {**selection.model_dump(), **given}
        changed["settings"] = selection.settings | given.get("settings", {})
        try:
            task = make_task(configuration.task)
            chosen = configuration.select(Selection.model_validate(changed))
            known("partitions", configuration.partitions, task.partitions)
        except ValueError as error:
            raise ConfigError(f"comparison {name}: {error}.") from None
        own = {
            method: parse(task.method_settings, row.settings, f"{name}.yaml, methods.{method}")
            for method, row in configuration.methods.items()
        }
        settings = parse(task.settings, chosen.settings, f"{name}.yaml, settings")
        return cls(
            name,
            configuration,
            task,
            chosen.partitions,
            chosen.methods,
            chosen.seeds,
            settings,
            own,
            chosen.against,
        )

    def against(self, method: str) -> str:
        """Return the method that `method` is compared with; itself: with none."""
        given = self.configuration
        return self.reference or given.methods[method].against or given.reference

    def units(self) -> Iterator[tuple[str, str, int]]:
        """Yield (partition, method, seed): seed by seed, so that what is there early can be compared."""
        for seed in self.seeds:
            for partition in self.partitions:
                for method in self.methods:
                    yield partition, method, seed

    def check(self) -> None:
        """Have rules and learners of the wanted methods read their settings.

        Raises:
            ConfigError: one of them does not take them; names the method.
        """
        for method in self.methods:
            try:
                self.task.check(self.settings, self.own[method])
            except (ConfigError, ValueError) as error:
                raise ConfigError(f"{self.name}.yaml, methods.{method}: {error}") from None

    def fingerprint(self, method: str) -> str:
        """Return what changes with anything that decides the numbers of a method."""
        return digest(
            {
                "schema": SCHEMA,
                "task": self.configuration.task,
                "settings": self.settings.model_dump(mode="json"),
                "own": self.own[method].model_dump(mode="json"),
            }
        )

    def shared_folder(self, out: Path) -> Path:
        """Return the folder of what units share; other settings of the task have another one."""
        settings = self.settings.model_dump(mode="json")
        return out / "shared" / f"{self.configuration.task}-{digest(settings)[:12]}"

    def results(self, store: ResultStore) -> dict[tuple[str, str, int], Result]:
        """Return every complete unit that is wanted.

        Raises:
            ConfigError: a file is of another schema or unit, or was made with other settings.
        """
        found = {unit: store.read(*unit, self.fingerprint(unit[1])) for unit in self.units()}
        return {unit: result for unit, result in found.items() if result is not None}


def digest(data: Any) -> str:
    """Return SHA-256 of JSON with sorted keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class NotTrained:
    """Units that failed, and units that need what is not on this machine."""

    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def end_after(minutes: float | None) -> float:
    """Return the moment of `time.monotonic` in so many minutes; never for None."""
    return math.inf if minutes is None else time.monotonic() + 60 * minutes


def run_units(
    comparison: Comparison, out: Path, ends: float = math.inf, say: Callable[[str], None] = print
) -> NotTrained:
    """Train every unit that is wanted and has no result; return those that were not trained.

    A unit that fails keeps what it wrote and its error in its .partial folder, and the others go on. One that
    was interrupted goes on after its last whole round.

    Args:
        ends: moment of `time.monotonic` after which nothing new begins; a unit in training stops when its
            round is done, and the same command goes on with it.

    Raises:
        ConfigError: a result that is there cannot be used; nothing was trained.
    """
    store, found = ResultStore(out, comparison.name), NotTrained()
    comparison.results(store)
    comparison.check()
    for partition, method, seed in comparison.units():
        if time.monotonic() > ends:
            say("stopped, as the time is over; the same command goes on.")
            break
        with store.claim(partition, method, seed) as partial:
            told = f"{partition} {method} seed {seed}"
            if partial is None:
                if not (store.unit_folder(partition, method, seed) / FILE).is_file():
                    say(f"{told}: another process trains it")
                continue
            try:
                inputs = comparison.task.inputs(comparison.settings, comparison.own[method], partition)
                progress = UnitProgress(partial, comparison.fingerprint(method), ends, inputs)
                if progress.goes_on:
                    say(f"{told}: goes on after {progress.seconds():.0f} s of an interrupted training")
                result = train_unit(
                    comparison, (partition, method, seed), comparison.shared_folder(out), partial, progress
                )
            except OutOfTimeError:
                say(f"{told}: stopped, as the time is over; the same command goes on with it.")
                break
            except NotHereError as error:
                if not has_checkpoint(partial):  # a folder that is away for a while costs no trained round
                    shutil.rmtree(partial)
                found.left_out.append(told)
                say(f"{told}: left out: {error}")
                continue
            except Exception as error:  # the comparison goes on without this unit
                (partial / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
                found.failed.append(told)
                say(f"{told}: failed: {type(error).__name__}: {error}; see {partial / ERROR}")
                continue
            progress.remove()
            store.complete(partial, result)
            say(f"{told}: {result.seconds:.0f} s")
    return found


def train_unit(
    comparison: Comparison,
    unit: tuple[str, str, int],
    shared: Path,
    folder: Path,
    progress: UnitProgress,
) -> Result:
    """Train one unit (partition, method, seed) in `folder` and return its result."""
    partition, method, seed = unit
    shared.mkdir(parents=True, exist_ok=True)
    with exclusive(shared / "prepare.lock"):
        comparison.task.prepare(comparison.settings, partition, seed, shared)
    progress.begin()
    measured = comparison.task.train(
        Unit(
            method=method,
            partition=partition,
            seed=seed,
            settings=comparison.settings,
            own=comparison.own[method],
            shared=shared,
            folder=folder,
            progress=progress,
        )
    )
    return Result(
        **measured.model_dump(),
        scores=scores_by_place(comparison.task.places(comparison.settings, partition, folder)),
        comparison=comparison.name,
        partition=partition,
        method=method,
        seed=seed,
        settings=comparison.fingerprint(method),
        seconds=progress.seconds(),
        commit=commit(),
    )


def scores_by_place(places: Mapping[str, Run]) -> dict[str, dict[str, float]]:
    """Return place -> metric -> value; one that is not finite is left out and costs no trained unit."""
    values = {place: {name: one.value for name, one in run.scores.items()} for place, run in places.items()}
    return {
        place: {name: value for name, value in own.items() if math.isfinite(value)}
        for place, own in values.items()
    }


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Let one process at a time in."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def commit() -> str:
    """Return the short commit of this checkout, with + where files differ; "" outside git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
