# SPDX-License-Identifier: Apache-2.0
"""Options of a command as settings: pairs of --set, options of their own, and what both say together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from medflare.core.config import S, parse
from medflare.core.errors import ConfigError
from medflare.core.idle_settings import idle, without_effect

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def parse_options(settings: type[S], options: Mapping[str, Any], where: str) -> S:
    """Build `settings` from the options of a command.

    Args:
        options: None for one that was left out.
        where: the command.

    Raises:
        ConfigError: lists every problem, or the options that do nothing beside the others.
    """
    given = {name: value for name, value in options.items() if value is not None}
    parsed = parse(settings, given, where)
    if faults := idle(given, without_effect(parsed)):
        raise ConfigError(f"{where}: {'; '.join(faults)}. Leave it out.")
    return parsed


def read_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `key=value` pairs, as `--set` takes them; values are read as YAML.

    Raises:
        ConfigError: a pair has no key or no `=`, or its value is no YAML.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {pair}: expected key=value, for instance --set settings.lr=0.001")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            why = str(getattr(error, "problem", None) or "unreadable")
            raise ConfigError(
                f"--set {pair}: the value is no YAML ({why}). Put quotes around a text: --set \"{key}='...'\""
            ) from None
        values[key.strip()] = number_of(value) if value == text.strip() else value
    return values


def with_options(changes: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return changes together with those that have an option of their own.

    Args:
        options: key of the change -> value of its option (`num_rounds` of --rounds); None where it was left
            out.

    Raises:
        ConfigError: the option and a change say different things.
    """
    given = {key: value for key, value in options.items() if value is not None}
    twice = [
        f"{key} is {given[key]} by its option and {changes[key]} by --set"
        for key in given
        if key in changes and changes[key] != given[key]
    ]
    if twice:
        raise ConfigError(f"{'; '.join(twice)}. Leave one of the two out.")
    return {**changes, **given}


def number_of(value: Any) -> Any:
    """Return `1e-4` as a number, which YAML reads as text (only `1.0e-4` is one to it); all else as it is."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
