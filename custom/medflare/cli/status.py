# SPDX-License-Identifier: Apache-2.0
"""`medflare status`: which run goes on here, and how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.recipes.run_status import RunStatus


@plain_errors
def status(
    folder: Path = typer.Argument(
        Path("runs"), help="A run's workspace, or a folder that holds runs, a server's kit too."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Shows the runs that go on in a folder: round, sites, since when, last progress, process.

    Where none goes on, shows the newest one and how it ended. Nothing is changed.

    [bold]Example[/bold]: medflare status runs/first
    """
    import time

    from medflare.recipes import run_status

    found, now = run_status.statuses(folder), time.time()
    if as_json:
        print_json([run_status.as_json(status, now) for status in found])
        return
    for each in found:
        _show(each, now)


def _show(status: RunStatus, now: float) -> None:
    """Print one run as a table of facts."""
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from medflare.egress.failures import clean_text

    run = status.stored
    began = datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = {
        "state": f"{run.state}{f': {status.reason}' if status.reason else ''}",
        "job": run.job,
        "phase": status.phase,
        "since": f"{began}, {_ago(now - run.started)}",
        "last progress": _ago(now - status.last_progress),
        "process": f"{status.pid} on {status.host or 'this machine'}" if status.pid else "",
    }
    rows |= {f"site {site}": verdict for site, verdict in status.sites.items()}
    table = Table(title=Text(str(run.path)), show_header=False, title_justify="left")
    for name, value in rows.items():
        if value:
            table.add_row(Text(clean_text(name)), Text(clean_text(value)))
    Console().print(table)


def _ago(seconds: float) -> str:
    """Return `12 s ago`, `3 min ago` or `2.5 h ago`."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.1f} h ago"
