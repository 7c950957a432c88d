# SPDX-License-Identifier: Apache-2.0
"""`medflare job`: jobs at a server, for an admin with a startup kit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json
from medflare.core.option_values import read_pairs, with_options

app = typer.Typer(help="Jobs at a server: submit, status, wait, logs, abort, download.", no_args_is_help=True)
KIT = typer.Option(
    ..., "--kit", envvar="MEDFLARE_ADMIN_KIT", help="Startup kit of an admin; or MEDFLARE_ADMIN_KIT."
)
JOB = typer.Argument(..., help="Id of the job, as `medflare job status` lists it.")


@app.command()
@plain_errors
def submit(
    job: Path = typer.Argument(..., help="A job folder, for instance jobs/fedmrg."),
    kit: Path = KIT,
    rounds: int | None = typer.Option(None, "--rounds", min=1, help="Rounds; default as the job says."),
    canary: bool = typer.Option(
        False, "--canary", help="One checked and discarded step at every site first."
    ),
    set_: list[str] = typer.Option(
        [], "--set", help="key=value over the job, e.g. settings.variant=fed_lora. Repeatable."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Checks a job as `medflare run` does and submits it.

    [bold]Example[/bold]: medflare job submit jobs/fedmrg --kit kits/admin@coordinator.org --rounds 10
    """
    from medflare.recipes.admin_jobs import submit_job

    changes = with_options(read_pairs(set_), num_rounds=rounds, canary=canary or None)
    number = submit_job(kit, job, changes, lambda line: print(line, file=sys.stderr))
    if as_json:
        print_json({"job": number})
    else:
        print(f"submitted as job {number}")


@app.command()
@plain_errors
def status(
    job: str | None = typer.Argument(None, help="Id of a job; default: the newest jobs."),
    kit: Path = KIT,
    most: int = typer.Option(20, "--most", min=1, help="Jobs in the list."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Lists jobs, or shows one: its state, and how far it is if it runs.

    [bold]Example[/bold]: medflare job status --kit kits/admin@coordinator.org
    """
    from medflare.recipes.admin_jobs import job_facts, list_jobs

    if job is None:
        rows = [facts.model_dump() for facts in list_jobs(kit, most)]
        if as_json:
            print_json(rows)
        else:
            _table("jobs", rows)
        return
    facts, progress = job_facts(kit, job)
    shown = facts.model_dump() | progress
    if as_json:
        print_json(shown)
    else:
        _table(f"job {facts.job}", [{"": name, "value": value} for name, value in shown.items()])


@app.command()
@plain_errors
def wait(
    job: str = JOB,
    kit: Path = KIT,
    minutes: float | None = typer.Option(
        None, "--minutes", min=0, help="Wait no longer; the job goes on. Default: to its end."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Waits for the end of a job and says on the way, on standard error, how far it is.

    A server that is started again meanwhile is waited for. FLARE's word says only that its own part ended
    well; how the run ended says its record, which `medflare job download` fetches. The exit code is 5 where
    the job did not end well, or not in time.

    [bold]Example[/bold]: medflare job wait JOB --kit kits/admin@coordinator.org
    """
    import math

    from medflare.core.errors import RunError
    from medflare.recipes.admin_jobs import COMPLETED, NEVER_BEGAN, wait_for_job

    seconds = math.inf if minutes is None else 60 * minutes
    ended = wait_for_job(kit, job, lambda line: print(line, file=sys.stderr), seconds)
    if ended == NEVER_BEGAN:
        raise RunError(
            f"job {job} never began, and FLARE tries no more. The last line before this says why; submit it "
            "again when that has changed."
        )
    if ended != COMPLETED:
        raise RunError(f"job {job} ended as {ended}. `medflare job logs {job}` shows what the server says.")
    if as_json:
        print_json({"job": job, "status": ended})
    else:
        print(f"{ended}; `medflare job download {job}` fetches the result")


@app.command()
@plain_errors
def logs(
    job: str = JOB,
    kit: Path = KIT,
    site: str = typer.Option("server", "--site", help="A site, `server`, or `all`."),
    lines: int = typer.Option(100, "--lines", "-n", min=1, help="Lines from the end."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Prints the log of a job. A site's own log is there if its policy lets FLARE stream it.

    [bold]Example[/bold]: medflare job logs JOB --kit kits/admin@coordinator.org --lines 50
    """
    from medflare.recipes.admin_jobs import job_logs

    shown, missing = job_logs(kit, job, site, lines)
    if as_json:
        print_json({"logs": shown, "unavailable": missing})
        return
    for name, text in shown.items():
        print(f"== {name}\n{text}" if len(shown) > 1 else text)
    for name, why in missing.items():
        typer.secho(f"{name}: no log ({why})", fg=typer.colors.YELLOW, err=True)


@app.command()
@plain_errors
def abort(job: str = JOB, kit: Path = KIT, as_json: bool = JSON_OPTION) -> None:
    """Ends a job at once. `medflare pause --kit` ends it after its present round.

    [bold]Example[/bold]: medflare job abort JOB --kit kits/admin@coordinator.org
    """
    from medflare.recipes.admin_jobs import abort_job

    begun = abort_job(kit, job)
    if as_json:
        print_json({"job": job, "abort": "asked for"})
    elif not begun:
        print(f"job {job} is withdrawn; it had not begun")
    else:
        print(f"job {job} is being ended; `medflare resume {job} --kit` goes on with its run")


@app.command()
@plain_errors
def download(
    job: str = JOB,
    kit: Path = KIT,
    to: Path = typer.Option(Path("results"), "--to", help="Folder that takes <job>/workspace."),
    page: bool = typer.Option(True, help="Write the HTML page."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Fetches the result of a job, and shows its scores as `medflare run` does.

    [bold]Example[/bold]: medflare job download JOB --kit kits/admin@coordinator.org
    """
    from rich.console import Console

    from medflare.cli.run import outcome, show
    from medflare.recipes.admin_jobs import download_job
    from medflare.recipes.after_run import locate

    record = locate(download_job(kit, job, to))
    facts = outcome(record, page)
    if as_json:
        print_json(facts)
    else:
        show(Console(), record, facts)


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows of the same keys as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print(f"no {title}")
        return
    table = Table(title=title, title_justify="left", show_header="" not in rows[0])
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    Console().print(table)
