# SPDX-License-Identifier: Apache-2.0
"""A run as a YAML file, `medflare run study.yaml`: the options of `medflare run` under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from medflare.core.config import Settings, parse, read_yaml
from medflare.core.option_values import number_of

SUFFIXES = (".yaml", ".yml")
BLOCKS = ("settings", "rule_settings", "protection_settings", "mixture")
"""Keys of `set` whose settings may stand nested below them."""


class RunFile(Settings):
    """Options of a run. Relative paths start at the folder of the file; job settings stand under `set`."""

    job: Path = Field(description="a job folder, or the name of one of medflare's")
    site_file: Path | None = None
    sites: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    rounds: int | None = Field(default=None, ge=1)
    canary: bool = False
    local_baseline: bool = False
    set: dict[str, Any] = Field(
        default_factory=dict, description="as --set: `settings.lr: 1e-3`, or nested, `settings: {lr: 1e-3}`"
    )
    workspace: Path | None = None
    overwrite: bool = False
    on_stall: str | None = None
    on_end: str | None = None
    page: bool = True


def is_run_file(path: Path) -> bool:
    """Return whether the argument of `medflare run` names a run's file and no job folder."""
    return path.suffix in SUFFIXES and not path.is_dir()


def read_run_file(path: Path) -> RunFile:
    """Return the run of a file with its paths made absolute and its `set` as dotted keys.

    Raises:
        ConfigError: no such file, no YAML, or a key that nothing reads; all problems are listed.
    """
    given = parse(RunFile, read_yaml(path), str(path))
    base = path.resolve().parent
    places = {name: getattr(given, name) for name in ("job", "site_file", "workspace")}
    found: dict[str, Any] = {name: base / place for name, place in places.items() if place}
    if given.job.name == str(given.job) and not found["job"].exists():
        found["job"] = given.job  # as on the command line, the name of one of medflare's
    return given.model_copy(update={**found, "set": _dotted(given.set)})


def _dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings of BLOCKS under dotted keys, so that they change a job's blocks and do not
    take their place."""
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key in BLOCKS and isinstance(value, Mapping):
            changes |= _beneath(key, value)
        else:
            changes[key] = number_of(value)
    return changes


def _beneath(key: str, block: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in block.items():
        inner = isinstance(value, Mapping) and value
        changes |= _beneath(f"{key}.{name}", value) if inner else {f"{key}.{name}": number_of(value)}
    return changes
