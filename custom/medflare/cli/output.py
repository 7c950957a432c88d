# SPDX-License-Identifier: Apache-2.0
"""How commands speak: tables for people, JSON for scripts, errors with an exit code that means something."""

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
    """JSON on standard output, and nothing else there."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns a MedflareError into one message on standard error and its exit code; no traceback."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except MedflareError as error:
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(error.exit_code) from None

    return wrapped


def names(text: str | None) -> list[str] | None:
    """`a,b` as a list; None stays None."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def changes(pairs: list[str]) -> dict[str, Any]:
    """`key=value` pairs; values are read as YAML, so that numbers and lists come out as such."""
    import yaml

    from medflare.core.errors import ConfigError

    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {pair}: expected key=value, for instance --set settings.lr=0.001")
        read = yaml.safe_load(value)
        found[key.strip()] = _number(read) if read == value.strip() else read
    return found


def _number(value: Any) -> Any:
    """1e-4 as the number it is everywhere but in YAML, which wants 1.0e-4."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
