# SPDX-License-Identifier: Apache-2.0
"""`medflare run`: a job in FLARE's simulator, from the job folder to the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, names, plain_errors, print_json
from medflare.core.option_values import read_pairs, with_options

if TYPE_CHECKING:
    from medflare.federation.heartbeat import Hooks
from medflare.core.errors import ConfigError

SHOWN = (
    *("accuracy", "chance", "bleu_4", "label_f1", "change_f1"),
    *("ner_strict_f1", "re_gold_strict_f1", "parse_failure_rate"),
)
"""Of these, what a run has fits a terminal of 80 columns; the page and `--json` have all."""


@plain_errors
def run(
    job: Path = typer.Argument(
        ..., help="A job folder, the name of one of medflare's (fedmrg), or a run.yaml with these options."
    ),
    site_file: Path | None = typer.Option(
        None,
        "--site-file",
        "-f",
        help="site.yaml of all sites, keyed by name; default: synthetic hospitals.",
    ),
    sites: str | None = typer.Option(
        None, "--sites", help="Which of them train, separated by commas; default all but --unseen."
    ),
    unseen: str | None = typer.Option(
        None, "--unseen", help="Sites that only test the global adapter afterwards."
    ),
    rounds: int | None = typer.Option(None, "--rounds", min=1, help="Rounds; default as the job says."),
    canary: bool = typer.Option(
        False, "--canary", help="One checked and discarded step at every site first."
    ),
    local_baseline: bool = typer.Option(
        False,
        "--local-baseline",
        help="Then train each site alone with the same budget, and show what federating brought.",
    ),
    set_: list[str] = typer.Option(
        [], "--set", help="key=value over the job, e.g. settings.variant=fed_lora. Repeatable."
    ),
    workspace: Path | None = typer.Option(None, "--workspace", "-w", help="Default: runs/<time>-<job>."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the run that lies in --workspace."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with the run in --workspace, as it was asked for then."
    ),
    on_stall: str | None = typer.Option(
        None, "--on-stall", help="Command to start when nothing happens for two deadlines; JSON on its stdin."
    ),
    on_end: str | None = typer.Option(
        None, "--on-end", help="Command to start when the run has ended, however; JSON on its stdin."
    ),
    page: bool = typer.Option(True, help="Write the HTML page."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Runs a job in the FLARE simulator with its workspace prepared, and shows what came out.

    Without a site file the synthetic hospitals are written to runs/cohorts once and used.

    [bold]Example[/bold]: medflare run jobs/fedmrg -f cohorts/site.yaml --unseen hospital-4 --rounds 5
    """
    from medflare.cli.run_file import RunFile, is_run_file, read_run_file
    from medflare.core.stop_signals import stop_signals_raise
    from medflare.evaluation.meteor_program import shared_program
    from medflare.federation.heartbeat import Hooks

    # What stands on the command line counts before what stands in the file.
    file = read_run_file(job) if is_run_file(job) else RunFile(job=job)
    workspace = workspace or file.workspace
    on_stall, on_end = on_stall or file.on_stall, on_end or file.on_end
    hooks = Hooks(on_stall=_words("--on-stall", on_stall), on_end=_words("--on-end", on_end))
    if resume:
        if workspace is None:
            raise ConfigError("--resume needs --workspace, with the run to go on with.")
        asked = {"--site-file": site_file, "--sites": sites, "--unseen": unseen, "--rounds": rounds}
        flags = {"--canary": canary, "--local-baseline": local_baseline, "--overwrite": overwrite}
        if given := [name for name, value in {**asked, "--set": set_, **flags}.items() if value]:
            raise ConfigError(
                f"{', '.join(given)}: --resume goes on with the run as it was asked for then. Leave it "
                "out, or begin another run."
            )
        resume_workspace(workspace, page and file.page, as_json, hooks)
        return
    request = RunRequest(
        job=file.job,
        site_file=site_file or file.site_file,
        sites=names(sites) or list(file.sites),
        unseen=names(unseen) or list(file.unseen),
        local_baseline=local_baseline or file.local_baseline,
        changes=with_options(file.set, num_rounds=file.rounds, canary=file.canary or None)
        | with_options(read_pairs(set_), num_rounds=rounds, canary=canary or None),
        workspace=workspace,
        overwrite=overwrite or file.overwrite,
        hooks=hooks,
        page=page and file.page,
        as_json=as_json,
    )
    with stop_signals_raise(), shared_program():
        _run(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The options of `medflare run`."""

    job: Path
    site_file: Path | None
    sites: list[str]
    unseen: list[str]
    local_baseline: bool
    changes: dict[str, Any]
    workspace: Path | None
    overwrite: bool
    hooks: Hooks
    page: bool
    as_json: bool


def _run(request: RunRequest) -> None:
    """Run a job, test it where it is unseen, and show what came out."""
    import sys

    from rich.console import Console

    from medflare.recipes.progress_view import live
    from medflare.recipes.simulator_process import starting_early
    from medflare.recipes.workspace_name import new_workspace

    site_file, unseen = request.site_file, request.unseen
    workspace = (request.workspace or new_workspace(request.job.name)).resolve()
    console = Console(stderr=request.as_json, file=sys.stderr if request.as_json else None)
    display, take = live(console, workspace)
    with display, starting_early():  # before the imports of seconds
        from medflare.cli.demo_hospitals import demo_hospitals
        from medflare.recipes.simulate import run_simulator

        if site_file is None:
            site_file, fourth = demo_hospitals(request.job, request.changes, take)
            unseen = unseen or [fourth]
        chosen = _training_sites(site_file, request.sites, unseen)
        run_simulator(
            request.job,
            workspace,
            chosen,
            site_file,
            changes=request.changes,
            on_event=take,
            overwrite=request.overwrite,
            unseen=unseen,
            local_baseline=request.local_baseline,
            hooks=request.hooks,
        )
    finish(console, workspace, unseen, request.page, request.as_json, request.local_baseline)


def resume_workspace(workspace: Path, page: bool, as_json: bool, hooks: Hooks | None = None) -> None:
    """Go on with a workspace's run, and show what came out as `run` does."""
    import sys

    from rich.console import Console

    from medflare.core.stop_signals import stop_signals_raise
    from medflare.evaluation.meteor_program import shared_program
    from medflare.recipes.progress_view import live
    from medflare.recipes.simulator_process import starting_early

    console = Console(stderr=as_json, file=sys.stderr if as_json else None)
    display, take = live(console, workspace.resolve())
    with stop_signals_raise(), shared_program():
        with display, starting_early():
            from medflare.recipes.simulate import resume_simulator

            _, request = resume_simulator(workspace, on_event=take, hooks=hooks)
        finish(console, workspace.resolve(), request.unseen, page, as_json, request.local_baseline)


def finish(
    console: Any, workspace: Path, away: list[str], page: bool, as_json: bool, local_baseline: bool = False
) -> None:
    """Test at the hospitals that took no part, train each site alone if wanted, compare, and show it all."""
    from medflare.cli.progress import progress_bar
    from medflare.recipes.after_run import compare_adapters, locate, name_synthetic_sites, score_unseen
    from medflare.worker.config import SITE_FILE

    record_path = locate(workspace)
    batch = ItemBatch()
    with _named_stop(record_path):
        for name in away:
            console.print(f"testing the global adapter at {name}, which took no part")
            with batch.item(name), progress_bar(f"testing at {name}") as progress:
                score_unseen(record_path, workspace / "local" / SITE_FILE, name, progress)
        if local_baseline:
            _train_each_alone(console, workspace, batch)
        console.print("comparing adapters and writing the page" if page else "comparing adapters")
        compare_adapters(record_path)
        name_synthetic_sites(record_path, workspace / "local" / SITE_FILE)
        facts = outcome(record_path, page)
    if as_json:
        print_json(facts)
    else:
        show(console, record_path, facts)
    batch.finish()


def _train_each_alone(console: Any, workspace: Path, batch: ItemBatch) -> None:
    """Train each site of a completed run alone; one that fails costs its own row."""
    from medflare.core.run_record import read_record
    from medflare.recipes.after_run import locate
    from medflare.recipes.local_baseline import FOLDER, train_alone
    from medflare.recipes.progress_view import live
    from medflare.recipes.simulate import run_simulator

    for site in read_record(locate(workspace)).sites:
        console.print(f"training {site} alone, with the rounds and steps of the run")
        display, take = live(console, workspace / FOLDER / site)
        with batch.item(f"{site} alone"), display:
            train_alone(workspace, site, run_simulator, take)


def _words(option: str, command: str | None) -> list[str]:
    """Return the words of a command, which is started without a shell.

    Raises:
        ConfigError: a quote is not closed, or there is no such program.
    """
    import shlex
    import shutil

    from medflare.core.errors import ConfigError

    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise ConfigError(f"{option} {command}: {error}. Write it as in a shell.") from None
    if words and shutil.which(words[0]) is None:
        raise ConfigError(f"{option} {command}: there is no program {words[0]} that could be started.")
    return words


@contextmanager
def _named_stop(record_path: Path) -> Iterator[None]:
    """Say of a signal that comes after the run that the run itself is complete."""
    from medflare.core.stop_signals import StopSignal

    try:
        yield
    except StopSignal as stop:
        text = f"{stop.reason} after the run, which is complete: {record_path}. `medflare evaluate` tests it."
        raise StopSignal(stop.number, text) from None


def _training_sites(site_file: Path, sites: list[str], unseen: list[str]) -> list[str]:
    """Return the sites that train: those chosen, or all that are not unseen.

    Raises:
        ConfigError: a name is not in the site file, or both trains and is unseen; nobody is left to train.
    """
    from medflare.core.errors import ConfigError
    from medflare.data.settings.site import load_site_file
    from medflare.federation.server.scorer import SERVER

    known = sorted(set(load_site_file(site_file)) - {SERVER})
    for option, given in (("--sites", sites), ("--unseen", unseen)):
        if unknown := [name for name in given if name not in known]:
            raise ConfigError(
                f"{option} {', '.join(unknown)}: not in {site_file}. It has: {', '.join(known)}."
            )
    if both := sorted(set(sites) & set(unseen)):
        raise ConfigError(
            f"{', '.join(both)}: in --sites and in --unseen; a site that trains is not unseen. Name it once."
        )
    training = sites or [name for name in known if name not in unseen]
    if not training:
        raise ConfigError(f"--unseen names every site of {site_file}; at least one has to train.")
    return training


def outcome(record_path: Path, page: bool = True) -> dict[str, Any]:
    """Return paths and headline numbers of a finished run, JSON types."""
    from medflare.core.run_record import read_record
    from medflare.reporting.baseline_rows import baseline_rows
    from medflare.reporting.page import write_page
    from medflare.reporting.score_rows import rows_of

    record = read_record(record_path)
    folder = record_path.parent
    paths = {name: str(folder / path) for name, path in record.artefacts.items()}
    paths["record"] = str(record_path)
    for item in record.evaluations:
        predictions = folder / str(item.predictions or "") if item.adapter == "personalised" else None
        if predictions is not None and (predictions.parent / "personalised").is_dir():
            paths[f"{item.site} keeps"] = str((predictions.parent / "personalised").resolve())
    if page:
        paths["page"] = str(write_page(record_path))
    return {
        "status": record.status,
        "reason": record.reason,
        "rounds": len(record.rounds),
        "results": [row.as_json() for row in rows_of([record])],
        "local_baseline": [row.as_json() for row in baseline_rows(record)],
        "paths": paths,
    }


def show(console: Any, record_path: Path, facts: dict[str, Any]) -> None:
    """The results table, how the run ended where it was not well, and where everything lies."""
    import os

    from rich.table import Table
    from rich.text import Text

    from medflare.core.run_record import read_record
    from medflare.egress.failures import clean_text
    from medflare.reporting.baseline_rows import baseline_rows
    from medflare.reporting.score_rows import rows_of
    from medflare.reporting.tables import baseline_table, results_table

    record = read_record(record_path)
    if record.status != "completed":
        state = "its processes died" if record.status == "running" else record.status
        words = f"the run is not complete: {state}. {clean_text(record.reason, 500)}"
        console.print(Text(words.strip(), style="bold yellow"))
    console.print(results_table(rows_of([record]), SHOWN, protections=record.protections))
    if alone := [row for row in baseline_rows(record, SHOWN) if row.tested_at == row.trained_at]:
        console.print(baseline_table(alone))
    places = Table(title="what the run made", show_header=False, title_justify="left")
    for name, path in facts["paths"].items():
        places.add_row(name, os.path.relpath(path))
    console.print(places)
