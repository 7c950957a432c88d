# SPDX-License-Identifier: Apache-2.0
"""The contract of a comparison's task: what one unit trains, and what its tables hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from medflare.core.config import Settings
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.progress import UnitProgress
from method_comparison.result import Measured

S = TypeVar("S", bound=Settings)
M = TypeVar("M", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class Unit(Generic[S, M]):
    """One training: a method, a partition of the data and a seed.

    Attributes:
        settings: of the comparison, equal for all methods.
        own: of the method.
        shared: a folder for what units with the same settings share (cohorts, features, a common start).
        folder: for what this unit writes; empty but for the progress of an interrupted training.
        progress: the checkpoints from which an interrupted training goes on, and its processor seconds.
    """

    method: str
    partition: str
    seed: int
    settings: S
    own: M
    shared: Path
    folder: Path
    progress: UnitProgress


@dataclass(frozen=True, kw_only=True)
class ShownRow(Generic[S]):
    """What a page knows of the complete units of one method: seed -> folder."""

    title: str
    settings: S
    folders: Mapping[int, Path] = field(default_factory=dict)


class ComparisonTask(ABC, Generic[S, M]):
    """A kind of comparison: how a unit is trained and measured.

    Attributes:
        columns: metric of `Measured.values` -> its column.
        case_columns: metric of the runs that `places` returns -> its column.
        targets: target of `Measured.times` -> its words.
        curve_axes: name of `Measured.curves` -> what its first coordinate is.
        partitions: the partitions of data that there are.
    """

    name: ClassVar[str]
    settings: ClassVar[type[Settings]]
    method_settings: ClassVar[type[Settings]]
    columns: ClassVar[Mapping[str, Column]] = {}
    case_columns: ClassVar[Mapping[str, Column]] = {}
    targets: ClassVar[Mapping[str, str]] = {}
    curve_axes: ClassVar[Mapping[str, str]] = {}
    partitions: ClassVar[Sequence[str]] = ("all",)

    def prepare(self, settings: S, partition: str, seed: int, shared: Path) -> None:
        """Write what units share, unless it is there; only one process at a time is in here."""

    def check(self, settings: S, own: M) -> None:
        """Raise ConfigError where the rule or the learner of a method does not take its settings."""

    def inputs(self, settings: S, own: M, partition: str) -> Sequence[Path]:
        """Return the folders that a unit reads beside the program and the shared ones: models, public data.

        An interrupted unit goes on only where they are what they were.

        Raises:
            NotHereError: one of them is not there.
        """
        return ()

    @abstractmethod
    def train(self, unit: Unit[S, M]) -> Measured:
        """Train and test one unit; files that the tables need go into `unit.folder`."""

    def places(self, settings: S, partition: str, folder: Path) -> dict[str, Run]:
        """Return the scores by study of one unit, for each place that has a table of its own.

        None where what the unit predicted is not in its folder: its result keeps the scores themselves.
        """
        return {}

    def notes(self, partition: str, rows: Mapping[str, ShownRow[S]]) -> Sequence[str]:
        """Return paragraphs for the page beside the tables, from the folders of complete units."""
        return ()


AnyTask = ComparisonTask[Any, Any]
