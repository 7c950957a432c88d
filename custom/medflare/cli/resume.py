# SPDX-License-Identifier: Apache-2.0
"""`medflare resume` and `medflare pause`: a run in a workspace here, or a job at a server."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

KIT = typer.Option(None, "--kit", help="Startup kit of an admin, for a run at a server.")


@plain_errors
def resume(
    run: str = typer.Argument(
        ..., help="A simulator's workspace; with --kit, the id of the run's first job."
    ),
    kit: Path | None = KIT,
    watch: bool = typer.Option(
        False,
        "--watch",
        help="With --kit: wait for its end, and go on as often as the job's max_resumptions.",
    ),
    page: bool = typer.Option(True, help="In a workspace: write the HTML page."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Goes on with a run that crashed, was stopped or paused, at the exchange it was in.

    The result is the one that an undisturbed run would have had, to the last bit, if the sites are the same.
    At a server a new job is submitted, which names the run that it goes on with. With --watch the job that
    runs is waited for first, and only a run whose processes died goes on.

    [bold]Example[/bold]: medflare resume runs/demo/fedmrg
    """
    from medflare.core.errors import ConfigError

    if watch and kit is None:
        raise ConfigError(
            "--watch looks after a run at a server: name an admin's kit with --kit. In a workspace a run "
            "goes on by itself as often as the job's max_resumptions."
        )
    if kit is not None and not page:
        raise ConfigError("--no-page is for a workspace; a run at a server has a page once it is downloaded.")
    if kit is None:
        from medflare.cli.run import resume_workspace

        resume_workspace(Path(run), page, as_json)
        return
    from medflare.recipes.admin_runs import resume_job, watch_job

    if watch:
        job = watch_job(
            kit, run, run, lambda job: print(f"job {job} goes on with run {run}", file=sys.stderr)
        )
    else:
        job = resume_job(kit, run)
    if as_json:
        print_json({"run": run, "job": job})
    else:
        print(f"run {run} ended in job {job}" if watch else f"job {job} goes on with run {run}")


@plain_errors
def pause(
    run: str = typer.Argument(..., help="A simulator's workspace; with --kit, the id of the running job."),
    kit: Path | None = KIT,
    as_json: bool = JSON_OPTION,
) -> None:
    """Has a run end after its present round; `medflare resume` goes on with it.

    [bold]Example[/bold]: medflare pause runs/demo/fedmrg
    """
    if kit is None:
        from medflare.recipes.resume import WorkspaceState

        WorkspaceState(Path(run).resolve()).pause()
    else:
        from medflare.recipes.admin_runs import pause_job

        pause_job(kit, run)
    if as_json:
        print_json({"run": run, "pause": "asked for"})
    else:
        print("it pauses after the present round")
