# SPDX-License-Identifier: Apache-2.0
"""Strict settings: unknown keys are errors, and all errors of a document are reported together."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from medflare.core.errors import ConfigError


class Settings(BaseModel):
    """Base of every settings class; a key that nothing reads is refused.

    Attributes:
        renamed: keys that this class had in earlier releases -> today's key, or a sentence that says what to
            write instead. Subclasses need not repeat the entries of their bases.
        shorthand: the setting that a text in place of a block of this class stands for; "" where none may
            stand there.
    """

    renamed: ClassVar[dict[str, str]] = {}
    shorthand: ClassVar[str] = ""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )

    @property
    def without_effect(self) -> dict[str, str]:
        """Settings, or blocks of them, that do nothing beside the others -> why, such as "dual is false".

        Those of nested settings stand in their own classes; the function `without_effect` collects them all.
        """
        return {}


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


def parse(settings: type[S], data: Mapping[str, Any], where: str) -> S:
    """Build `settings` from `data`.

    Args:
        where: the document the person must open, for instance `local/site.yaml`.

    Raises:
        ConfigError: lists every problem of `data` and the keys that exist.
    """
    try:
        return settings.model_validate(dict(data))
    except ValidationError as error:
        problem = ConfigError(explain(error, settings, where))
        problem.without_values = explain(error, settings, where, values=False)
        raise problem from None


def explain(error: ValidationError, settings: type[BaseModel], where: str, values: bool = True) -> str:
    """Return one line for each problem of a pydantic error, in the words of the document.

    Args:
        values: whether a line ends with what was found; a text that leaves a site names keys only.
    """
    listed: set[tuple[int | str, ...]] = set()  # blocks whose settings a line names already
    lines = [f"{where}: {error.error_count()} setting(s) cannot be used:"]
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            block, unknown = item["loc"][:-1], str(item["loc"][-1])
            kind = _settings_at(settings, block)
            lines.append(f"  {key}: {_unknown_key(unknown, kind, where, listed=block in listed)}")
            if new_name(unknown, kind) is None:
                listed.add(block)
        elif item["type"] == "missing":
            lines.append(f"  {key}: is missing and has no default.")
        else:
            message = _message(item, settings, values and bool(key))  # never a whole document
            lines.append(f"  {key}: {message}" if key else f"  {message}")
    return "\n".join(lines)


def _message(item: ErrorDetails, settings: type[BaseModel], values: bool) -> str:
    """Return what pydantic or a validator says of a value, as a sentence."""
    if item["type"] == "model_type":  # a text or number where a block of settings belongs
        keys = ", ".join(sorted(_settings_at(settings, item["loc"]).model_fields))
        return f"expected settings, of these: {keys}" + (f" (found {item['input']!r})." if values else ".")
    sentence = item["msg"].removeprefix("Value error, ").rstrip(".")
    # A validator of several keys gets all of them, and says itself which of them it means.
    several = item["type"] == "value_error" and isinstance(item["input"], Mapping | list | tuple)
    return f"{sentence} (found {item['input']!r})." if values and not several else f"{sentence}."


def new_name(key: str, settings: type[BaseModel]) -> str | None:
    """Return what `settings` or a class it is made from says of a key of earlier releases; else None."""
    for base in settings.__mro__:
        if key in (renamed := vars(base).get("renamed", {})):
            return str(renamed[key])
    return None


def _unknown_key(key: str, settings: type[BaseModel], where: str, listed: bool) -> str:
    """Return what to do about a key that `settings` does not have: its new name, or the keys that exist.

    Args:
        listed: whether a line before this one names them.
    """
    new = new_name(key, settings)
    if new is not None:
        is_key = new.replace(".", "").isidentifier()
        return f"is now called {new}. Rename it in {where}." if is_key else new
    valid = list(settings.model_fields)
    near = difflib.get_close_matches(key, valid, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"no such setting.{hint}" + ("" if listed else f" Valid here: {', '.join(sorted(valid))}.")


def _settings_at(settings: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the settings class that `path` leads to, `settings` itself where it leads to none."""
    current: type[BaseModel] = settings
    choices: list[type[BaseModel]] = []
    for part in path:
        if part in current.model_fields:
            choices = settings_classes(current.model_fields[str(part)].annotation)
            if not choices:
                return settings
            current = choices[0]
        else:  # the tag of one of several classes, or an index in a list
            tagged = (c for c in choices if part in [f.default for f in c.model_fields.values()])
            current = next(tagged, current)
    return current


def settings_classes(annotation: Any) -> list[type[BaseModel]]:
    """Return the settings classes inside an annotation such as `X | None`, `list[X]` or `X | Y`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [nested for arg in get_args(annotation) for nested in settings_classes(arg)]


def read_package_data(settings: type[S], *paths: Path) -> S:
    """Return `settings` from YAML files of this package, whose top-level keys are put together.

    Raises:
        ConfigError: a key stands in two files, or the data does not fit `settings`.
    """
    data: dict[str, Any] = {}
    for path in paths:
        part = _load_package_yaml(path)
        if repeated := sorted(set(data) & set(part)):
            raise ConfigError(f"{path}: {', '.join(repeated)} is in another file of this folder, too.")
        data |= part
    return parse(settings, data, ", ".join(path.name for path in paths))


def read_package_table(table: type[T], path: Path) -> T:
    """Return a table from a YAML file of this package.

    Args:
        table: its type, for instance `dict[str, School]` or `tuple[HouseStyle, ...]`, of settings or
            dataclasses.

    Raises:
        ConfigError: the data does not fit `table`.
    """
    try:
        return TypeAdapter(table).validate_python(_load_package_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {error}") from None


def _load_package_yaml(path: Path) -> Any:
    """Return the content of a YAML file; libyaml's parser, where PyYAML has it, is eight times as fast."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)


class _EachKeyOnce(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which PyYAML would take the second without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in lines:
                problem = f"'{key.value}' stands twice, first in line {lines[key.value]}; leave one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


_KINDS = {type(None): "nothing", list: "a list"}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, is not YAML or has a key twice (the message names the line), holds
            no mapping, or holds aliases that would make it endless.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _EachKeyOnce)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Write one, or start from workspace_templates/.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {error}") from None
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8, the 99th of a month, a folder, ...
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: expected 'key: value' lines, found {_KINDS.get(type(data), 'one value')}."
        )
    if expanded_size(data) > MOST_VALUES:
        raise ConfigError(f"{path}: its aliases (*) stand for more than {MOST_VALUES:,} values; write fewer.")
    return data


MOST_VALUES = 100_000
"""Most values of a settings file, each alias counted with all it stands for."""


def expanded_size(data: Any) -> float:
    """Return how many values a YAML document has with aliases written out: infinity for one inside itself.

    A few lines of aliases to lists of aliases stand for more values than any memory holds.
    """
    sizes: dict[int, float] = {}

    def size(node: Any) -> float:
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = math.inf  # while its parts are counted: a part that is the node itself
            sizes[id(node)] = 1 + sum(
                size(part) for part in (node.values() if isinstance(node, dict) else node)
            )
        return sizes[id(node)]

    return size(data)
