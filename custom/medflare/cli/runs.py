# SPDX-License-Identifier: Apache-2.0
"""`medflare runs`: the runs that lie on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.recipes.old_runs import StoredRun

app = typer.Typer(help="The runs that lie on this disk.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The runs that lie on this disk."""


@app.command()
@plain_errors
def prune(
    folder: Path = typer.Argument(Path("runs"), help="Where the runs lie, each in a folder of its own."),
    keep: int | None = typer.Option(None, "--keep", min=0, help="So many of the newest stay."),
    older_than: float | None = typer.Option(
        None, "--older-than", min=0, help="Days; what began later stays."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Delete without asking."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Lists the runs in a folder and deletes old ones, with everything in their workspaces.

    With both options a run goes if both let it go; with neither, nothing is deleted. Runs that still go on
    stay, and links are not followed. With --json nothing is deleted without --yes.

    [bold]Example[/bold]: medflare runs prune --keep 5 --older-than 30
    """
    from medflare.recipes.old_runs import choose, delete, find_runs

    runs = find_runs(folder)
    chosen = choose(runs, keep, older_than)
    if not as_json:
        _show(runs, chosen)
    go = bool(chosen) and (yes or (not as_json and typer.confirm(f"Delete {len(chosen)} runs for good?")))
    removed: list[StoredRun] = []
    batch = ItemBatch()
    for run in chosen if go else []:
        with batch.item(run.path):
            delete(run, folder)
            removed.append(run)
    if as_json:
        print_json([_facts(run, run in chosen, run in removed) for run in runs])
    elif go:
        print(f"deleted {len(removed)} runs, {_megabytes(sum(run.size for run in removed))}")
    batch.finish()


@app.command("list")
@plain_errors
def list_runs(
    folder: Path = typer.Argument(Path("runs"), help="Where workspaces lie, or a startup kit."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Lists runs with their true state: in a folder of workspaces, at a server or at a site.

    [bold]running[/bold]: its process is there. [bold]orphaned[/bold]: its process is there and FLARE's is
    gone; `medflare runs reconcile` ends it. [bold]interrupted[/bold]: nothing of it is there, and it was not
    done; `medflare resume` goes on with it.

    [bold]Example[/bold]: medflare runs list /opt/medflare/server
    """
    from medflare.recipes.old_runs import find_runs
    from medflare.recipes.run_registry import is_kit, kit_runs

    if is_kit(folder):
        rows = [
            {"run": run.name, "job": run.job, "state": run.state, "exchanges": run.exchanges, "pid": run.pid}
            for run in kit_runs(folder)
        ]
    else:
        rows = [
            {"run": run.path.name, "job": run.job, "state": run.state, "began": _date(run.started)}
            for run in find_runs(folder)
        ]
    if as_json:
        print_json(rows)
    else:
        _show_rows(rows)


@app.command()
@plain_errors
def reconcile(
    kit: Path = typer.Argument(..., help="Startup kit of the server or of a site, on this machine."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Puts in order what a crash left: processes whose FLARE parent is gone, records of dead runs.

    FLARE itself keeps such a job as RUNNING for ever; that does no harm, and `medflare resume` goes on with
    its run.

    [bold]Example[/bold]: medflare runs reconcile /opt/medflare/server
    """
    from medflare.recipes.run_registry import reconcile as put_in_order

    done = put_in_order(kit)
    if as_json:
        print_json([{"run": run.name, "done": what} for run, what in done])
    elif not done:
        print("everything is in order")
    for run, what in done if not as_json else []:
        print(f"{run.name}: {what}")


def _show_rows(rows: list[dict[str, Any]]) -> None:
    """Print a table of runs."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from medflare.egress.failures import clean_text

    console = Console()
    if not rows:
        console.print("there are no runs.")
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(Text("" if value is None else clean_text(str(value))) for value in row.values()))
    console.print(table)


def _facts(run: StoredRun, chosen: bool, deleted: bool) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "job": run.job,
        "state": run.state,
        "started": _date(run.started),
        "bytes": run.size,
        "chosen": chosen,
        "deleted": deleted,
    }


def _show(runs: list[StoredRun], chosen: list[StoredRun]) -> None:
    """Print a table of the runs, and which of them go."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from medflare.egress.failures import clean_text

    table = Table("run", "began", "state", "size", "")
    for run in runs:
        name = Text(" ".join(clean_text(run.path.name).split()))
        going = "goes" if run in chosen else ("still running" if run.live else "stays")
        table.add_row(name, _date(run.started), run.state, _megabytes(run.size), going)
    console = Console()
    console.print(table if runs else "there are no runs.")


def _date(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
