# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cli.md from the typer application."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from medflare.cli.main import app
from tools.reference.models import table

Command = Any
"""A click command; typer brings its own copy of click, so the class is not named here."""


def page() -> str:
    """Return the page."""
    parts = [
        "# Command line",
        "Generated from the code by `python -m tools.reference`. `--json` prints facts for scripts. "
        "[Exit codes](errors.md#exit-codes-of-medflare).",
    ]
    for path, command in commands(typer.main.get_command(app), "medflare"):
        parts += [f"## {path}", _help(command), *_parameters(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def commands(command: Command, path: str) -> Iterator[tuple[str, Command]]:
    """Yield every command below `command` with its full name, in order of the name."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name in sorted(below):
        yield from commands(below[name], f"{path} {name}")


def _help(command: Command) -> str:
    """Return the help text; an example becomes a block of code."""
    text = re.sub(r"\[/?bold\]", "", inspect.cleandoc(command.help or "").replace("\b", ""))
    prose, examples = [], []
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip().split("\n")
        if lines[0].startswith(("Example:", "Examples:")):
            examples += [re.sub(r"^Examples?: *", "", line.strip()) for line in lines]
        else:
            prose.append(" ".join(line.strip() for line in lines))
    block = ["```bash\n" + "\n".join(line for line in examples if line) + "\n```"] if examples else []
    return "\n\n".join(prose + block)


def _parameters(command: Command) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    if arguments:
        rows = [
            (f"`{p.name.upper()}`", "required" if p.required else "optional", p.help or "") for p in arguments
        ]
        yield table(("argument", "", "meaning"), rows)
    if options:
        yield table(("option", "default", "meaning"), [_option(p) for p in options])


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = option.default
    silent = value is None or value is False or value in ((), [], "") or callable(value)
    return names, "" if silent else f"`{str(value).lower() if value is True else value}`", option.help or ""
