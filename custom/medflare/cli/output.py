# SPDX-License-Identifier: Apache-2.0
"""Output and options of all commands: JSON for scripts, exit codes of errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import typer

from medflare.core.errors import MedflareError
from medflare.core.stop_signals import StopSignal
from medflare.wire.operating_system import operating_system_error

P = ParamSpec("P")
R = TypeVar("R")

PARTLY_DONE = 7
"""Exit code of a batch of which some could not be done; the others were, and those are named."""
JSON_OPTION = typer.Option(False, "--json", help="Print facts, or the error, as JSON, for scripts.")
AS_JSON = "as_json"
"""Parameter of every command that has JSON_OPTION."""


def print_json(value: Any) -> None:
    """Write JSON to standard output, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def print_json_error(name: str, text: str, exit_code: int) -> None:
    """Write an error as JSON: `{"error": {"name": ..., "text": ..., "exit_code": ...}}`."""
    print_json({"error": {"name": name, "text": text, "exit_code": exit_code}})


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: an error that a person can mend becomes one message and its exit code.

    That is a MedflareError, what the operating system refused in whatever file, and a signal to stop. With
    `--json` standard output has the error as JSON too.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except StopSignal as stop:
            typer.secho(stop.text, fg=typer.colors.YELLOW, err=True)
            if kwargs.get(AS_JSON):
                print_json_error("StopSignal", stop.text, stop.exit_code)
            raise typer.Exit(stop.exit_code) from None
        except Exception as error:
            known = mendable(error)
            if known is None:
                raise
        typer.secho(f"error: {known}", fg=typer.colors.RED, err=True)
        if kwargs.get(AS_JSON):
            print_json_error(type(known).__name__, str(known), known.exit_code)
        raise typer.Exit(known.exit_code)

    return wrapped


def mendable(error: Exception) -> MedflareError | None:
    """Return an error as one that a person can mend; None for a fault of the program."""
    return error if isinstance(error, MedflareError) else operating_system_error(error)


@dataclass(slots=True)
class ItemBatch:
    """The items of a command, files for instance, of which a bad one costs only itself.

    Attributes:
        done: how many could be done.
        failed: item -> why it could not be done.
    """

    done: int = 0
    failed: dict[str, MedflareError] = field(default_factory=dict)

    @contextmanager
    def item(self, name: object, last: bool = True) -> Iterator[None]:
        """Do one item; an error that a person can mend ends it alone, with a line on standard error.

        Args:
            last: whether the item is done after this; False before its last step.
        """
        try:
            yield
        except Exception as error:
            known = mendable(error)
            if known is None:
                raise
            self.failed[str(name)] = known
            place = "" if str(known).startswith(f"{name}: ") else f"{name}: "
            typer.secho(f"left out: {place}{known}", fg=typer.colors.YELLOW, err=True)
        else:
            self.done += last

    def require_some(self) -> None:
        """Raise the first error if nothing could be done."""
        if self.failed and not self.done:
            raise next(iter(self.failed.values()))

    def finish(self) -> None:
        """Name what was left out, and end the command with PARTLY_DONE; nothing if all is done."""
        self.require_some()
        if self.failed:
            count = len(self.failed) + self.done
            listed = ", ".join(self.failed)
            text = f"{len(self.failed)} of {count} left out: {listed}. The others are done."
            typer.secho(text, fg=typer.colors.YELLOW, err=True)
            raise typer.Exit(PARTLY_DONE)


def names(text: str | None) -> list[str] | None:
    """Return `a,b` as a list; None stays None."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None
