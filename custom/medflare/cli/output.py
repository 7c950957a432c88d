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
from medflare.core.stop_signals import StopSignal
from medflare.wire.system_failure import system_failure

P = ParamSpec("P")
R = TypeVar("R")

PARTLY_DONE = 7
"""Exit code of a batch of which some could not be done; the others were, and those are named."""
JSON_OPTION = typer.Option(False, "--json", help="Print facts as JSON, for scripts.")


def print_json(value: Any) -> None:
    """Write JSON to standard output, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: an error that a person can mend becomes one message and its exit code.

    That is a MedflareError, what the operating system refused in whatever file, and a signal to stop.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except StopSignal as stop:
            typer.secho(stop.text, fg=typer.colors.YELLOW, err=True)
            raise typer.Exit(stop.exit_code) from None
        except MedflareError as error:
            known: MedflareError = error
        except Exception as error:
            failure = system_failure(error)
            if failure is None:
                raise
            known = failure
        typer.secho(f"error: {known}", fg=typer.colors.RED, err=True)
        raise typer.Exit(known.exit_code)

    return wrapped


def names(text: str | None) -> list[str] | None:
    """Return `a,b` as a list; None stays None."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None
