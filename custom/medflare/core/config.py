# SPDX-License-Identifier: Apache-2.0
"""Strict settings: unknown keys are errors, and all errors of a document are reported together."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from medflare.core.errors import ConfigError


class Settings(BaseModel):
    """Base of every settings class; a key that nothing reads is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())


S = TypeVar("S", bound=Settings)


def parse(kind: type[S], data: Mapping[str, Any], where: str) -> S:
    """Builds `kind` from `data`, or raises ConfigError that lists every problem and the keys that exist.

    Args:
        where: the document the person must open, for instance `local/site.yaml`.
    """
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError(explain(error, kind, where)) from None


def explain(error: ValidationError, kind: type[BaseModel], where: str) -> str:
    """One line for each problem of a pydantic error, in the words of the document."""
    lines = [f"{where}: {error.error_count()} setting(s) cannot be used:"]
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            valid = _valid_keys(kind, item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), valid, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            lines.append(f"  {place}: no such setting.{hint} Valid here: {', '.join(sorted(valid))}.")
        elif item["type"] == "missing":
            lines.append(f"  {place}: is missing and has no default.")
        else:
            lines.append(f"  {place}: {item['msg']} (found {item['input']!r}).")
    return "\n".join(lines)


def _valid_keys(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Field names of the settings class that `path` leads to; of `kind` itself where it leads nowhere."""
    here: type[BaseModel] = kind
    choices: list[type[BaseModel]] = []
    for part in path:
        if part in here.model_fields:
            choices = _settings_classes(here.model_fields[str(part)].annotation)
            if not choices:
                return list(kind.model_fields)
            here = choices[0]
        else:  # the name of one of several kinds, or a place in a list
            here = next((c for c in choices if part in [f.default for f in c.model_fields.values()]), here)
    return list(here.model_fields)


def _settings_classes(annotation: Any) -> list[type[BaseModel]]:
    """The settings classes inside an annotation such as `X | None`, `list[X]` or `X | Y`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for arg in getattr(annotation, "__args__", ()) for kind in _settings_classes(arg)]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError that names the file and the line otherwise."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Write one, or start from workspace_templates/.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected 'key: value' lines, found {type(data).__name__}.")
    return data
