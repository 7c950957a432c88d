# SPDX-License-Identifier: Apache-2.0
"""What a comparison trains: the strict model of `configurations/NAME.yaml`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from medflare.core.config import Settings, parse, read_yaml
from medflare.core.errors import ConfigError

FOLDER = Path(__file__).parent / "configurations"
SCHEMA = 1
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]
"""Names become folders."""
Seed = Annotated[int, Field(ge=0, strict=True)]


class MethodRow(Settings):
    """One row of the tables.

    Attributes:
        settings: what this method changes; the task's `method_settings` says which keys there are.
        against: the method it is compared with; None: the comparison's `reference`; itself: none.
    """

    title: str = Field(min_length=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    against: Name | None = None


class Selection(Settings):
    """A part of a comparison; None stands for all of it.

    Attributes:
        settings: replace those of the comparison.
        against: the method that a page compares all others with, instead of what the configuration says.
    """

    partitions: tuple[Name, ...] | None = None
    methods: tuple[Name, ...] | None = None
    seeds: tuple[Seed, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    against: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What of a comparison is wanted, all of it written out."""

    partitions: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    against: str | None


class Configuration(Settings):
    """A comparison of methods on one task.

    Attributes:
        task: the name of a `ComparisonTask` (tasks/__init__.py).
        about: what is compared, and on what, for the page.
        control: the positive control: the row or the partition where the effect must show if the study can
            see it at all.
        reference: the method that all others are compared with.
        settings: of the task, equal for all methods.
        on_request: methods that are trained only where a command names them.
        small: a run of one or few rows in minutes, which shows that everything works.
    """

    schema_version: Literal[1]
    task: Name
    title: str = Field(min_length=1)
    about: str = ""
    control: str = ""
    partitions: tuple[Name, ...] = Field(default=("all",), min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    reference: Name
    settings: dict[str, Any] = Field(default_factory=dict)
    methods: dict[Name, MethodRow] = Field(min_length=1)
    on_request: tuple[Name, ...] = ()
    small: Selection = Selection()

    @model_validator(mode="after")
    def _check(self) -> Configuration:
        distinct("seeds", self.seeds)
        distinct("partitions", self.partitions)
        named = {"reference": [self.reference], "on_request": self.on_request}
        named |= {f"methods.{n}.against": [row.against] for n, row in self.methods.items() if row.against}
        for key, names in named.items():
            known(key, names, self.methods)
        self.select(self.small)
        return self

    def select(self, wanted: Selection) -> Chosen:
        """Return what `wanted` stands for; without names, all methods but those on request.

        Raises:
            ValueError: one that the comparison does not have, or one that is named twice.
        """
        usual = tuple(name for name in self.methods if name not in self.on_request)
        chosen = Chosen(
            partitions=self.partitions if wanted.partitions is None else wanted.partitions,
            methods=usual if wanted.methods is None else wanted.methods,
            seeds=self.seeds if wanted.seeds is None else wanted.seeds,
            settings=self.settings | wanted.settings,
            against=wanted.against,
        )
        distinct("seeds", chosen.seeds)
        distinct("methods", chosen.methods)
        distinct("partitions", chosen.partitions)
        known("methods", chosen.methods, self.methods)
        known("partitions", chosen.partitions, self.partitions)
        known("against", [chosen.against] if chosen.against else [], chosen.methods)
        return chosen


def distinct(key: str, values: Iterable[object]) -> None:
    """Raise ValueError where a value stands twice: its unit would count twice."""
    if twice := [str(value) for value, count in Counter(values).items() if count > 1]:
        raise ValueError(f"{key}: {', '.join(twice)} stands there twice; name each once")


def known(key: str, names: Iterable[str], there: Iterable[str]) -> None:
    """Raise ValueError for a name that does not exist."""
    there = list(there)
    if unknown := [name for name in names if name not in there]:
        raise ValueError(f"{key}: there is no {', '.join(unknown)}; there are {', '.join(there)}")


def read_configuration(name: str, folder: Path = FOLDER) -> Configuration:
    """Return the comparison called `name`.

    Raises:
        ConfigError: there is none of that name, or its file has unknown keys or values; lists all of them.
    """
    there = names(folder)
    if name not in there:
        raise ConfigError(f"There is no comparison called {name!r}; there are {', '.join(there)}.")
    path = folder / f"{name}.yaml"
    data = read_yaml(path)
    version = data.get("schema_version")
    if version != SCHEMA:
        raise ConfigError(f"{path.name}: schema_version is {version!r}; this program reads {SCHEMA}.")
    return parse(Configuration, data, path.name)


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of all comparisons."""
    return sorted(path.stem for path in folder.glob("*.yaml"))
