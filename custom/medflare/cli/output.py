# SPDX-License-Identifier: Apache-2.0
"""Output and options of all commands: JSON for scripts, exit codes of errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import typer

from medflare.core.errors import MedflareError

P = ParamSpec("P")
R = TypeVar("R")

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
