# SPDX-License-Identifier: Apache-2.0
"""`medflare kits ...`: startup kits made safe, and checked by whoever runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

app = typer.Typer(help="Hardens and checks startup kits.", no_args_is_help=True)
KITS = typer.Argument(
    ..., help="Folder that `nvflare provision -w` wrote, a prod_NN folder of it, or one kit."
)


@app.command("harden")
@plain_errors
def harden(kits: Path = KITS, as_json: bool = JSON_OPTION) -> None:
    """Makes startup kits safe by default and prints what it changed; again, it changes nothing.

    [bold]Example[/bold]: medflare kits harden kits
    """
    from medflare.federation.hardening import harden as apply

    changes = apply(kits)
    if as_json:
        print_json([_row(change) for change in changes])
        return
    for change in changes:
        typer.echo(str(change))
    typer.echo(f"{len(changes)} change(s)" if changes else "nothing to change")


def _row(change: Any) -> dict[str, Any]:
    return {"file": str(change.path), "key": change.key, "before": change.before, "after": change.after}
