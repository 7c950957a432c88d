# SPDX-License-Identifier: Apache-2.0
"""Output and options of all commands: JSON for scripts, exit codes of errors, `key=value` pairs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import typer

from medflare.core.errors import MedflareError

P = ParamSpec("P")
R = TypeVar("R")

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
JSON_OPTION = typer.Option(False, "--json", help="Print facts as JSON, for scripts.")


def print_json(value: Any) -> None:
    """Write JSON to standard output, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: a MedflareError becomes one message on standard error and its exit code."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except MedflareError as error:
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(error.exit_code) from None

    return wrapped


def names(text: str | None) -> list[str] | None:
    """Return `a,b` as a list; None stays None."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def changes(pairs: list[str]) -> dict[str, Any]:
    """Return `key=value` pairs as a dictionary; values are read as YAML.

    Raises:
        ConfigError: a pair has no key or no `=`.
    """
    import yaml

    from medflare.core.errors import ConfigError

    values: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {pair}: expected key=value, for instance --set settings.lr=0.001")
        read = yaml.safe_load(value)
        values[key.strip()] = _number(read) if read == value.strip() else read
    return values


def _number(value: Any) -> Any:
    """Return `1e-4` as a number, which YAML reads only as `1.0e-4`."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
