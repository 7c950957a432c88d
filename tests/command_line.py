# SPDX-License-Identifier: Apache-2.0
"""The medflare command as tests call it."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from medflare.cli.main import app


def medflare(*words: object, columns: int | None = 200) -> Result:
    """Run the command with these words in a terminal of so many columns, by default wide enough for all."""
    width = {"COLUMNS": str(columns)} if columns else {}
    return CliRunner().invoke(app, [*map(str, words)], env=width)


def answer(*words: object) -> str:
    """Return what a command that succeeds prints."""
    result = medflare(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def facts(*words: object) -> Any:
    """Return the JSON of a command that succeeds."""
    return json.loads(answer(*words, "--json"))


def refusal(code: int, *words: object) -> str:
    """Return what a command says on standard error that fails with this code, in one line."""
    result = medflare(*words)
    assert result.exit_code == code, result.output
    return " ".join(result.stderr.split())
