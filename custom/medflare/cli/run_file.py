# SPDX-License-Identifier: Apache-2.0
"""A run as a YAML file, `medflare run study.yaml`: the options of `medflare run` under their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from medflare.core.config import Settings, parse, read_yaml

SUFFIXES = (".yaml", ".yml")


class RunFile(Settings):
    """Options of a run. Relative paths start at the folder of the file; job settings stand under `set`."""

    job: Path
    site_file: Path | None = None
    sites: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    rounds: int | None = Field(default=None, ge=1)
    canary: bool = False
    local_baseline: bool = False
    set: dict[str, Any] = Field(default_factory=dict)
    workspace: Path | None = None
    overwrite: bool = False
    on_stall: str | None = None
    on_end: str | None = None
    page: bool = True


def is_run_file(path: Path) -> bool:
    """Return whether the argument of `medflare run` names a run's file and no job folder."""
    return path.suffix in SUFFIXES and not path.is_dir()


def read_run_file(path: Path) -> RunFile:
    """Return the run of a file with its paths made absolute.

    Raises:
        ConfigError: no such file, no YAML, or a key that nothing reads; all problems are listed.
    """
    given = parse(RunFile, read_yaml(path), str(path))
    base = path.resolve().parent
    places = {name: getattr(given, name) for name in ("job", "site_file", "workspace")}
    return given.model_copy(update={name: base / place for name, place in places.items() if place})
