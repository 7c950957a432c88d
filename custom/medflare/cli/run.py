# SPDX-License-Identifier: Apache-2.0
"""`medflare run`: a job in FLARE's simulator, from the job folder to the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, names, plain_errors, print_json
from medflare.core.config import read_pairs

SHOWN = ("accuracy", "chance", "bleu_4", "label_f1", "change_f1", "ner_strict_f1", "re_gold_strict_f1")
"""Of these, what a run has fits a terminal of 80 columns; the page and `--json` have all."""


@plain_errors
def run(
    job: Path = typer.Argument(..., help="A job folder, for instance jobs/fedmrg."),
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
    set_: list[str] = typer.Option(
        [], "--set", help="key=value over the job, e.g. settings.variant=fed_lora. Repeatable."
    ),
    workspace: Path | None = typer.Option(None, "--workspace", "-w", help="Default: runs/<time>-<job>."),
    page: bool = typer.Option(True, help="Write the HTML page."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Runs a job in the FLARE simulator with its workspace prepared, and shows what came out.

    Without a site file the synthetic hospitals are written to runs/cohorts once and used.

    [bold]Example[/bold]: medflare run jobs/fedmrg -f cohorts/site.yaml --unseen hospital-4 --rounds 5
    """
    import sys

    from rich.console import Console

    from medflare.cli.demo_hospitals import demo_hospitals
    from medflare.recipes.after_run import compare_adapters, locate, score_unseen
    from medflare.recipes.progress_view import live
    from medflare.recipes.simulate import new_workspace, run_simulator

    changes = read_pairs(set_)
    if site_file is None:
        site_file, fourth = demo_hospitals(job, changes)
        unseen = unseen or fourth
    away = names(unseen) or []
    chosen = names(sites) or _all_but(away, site_file)
    workspace = (workspace or new_workspace(job.name)).resolve()
    console = Console(stderr=as_json, file=None if not as_json else sys.stderr)
    display, take = live(console)
    with display:
        run_simulator(job, workspace, chosen, site_file, rounds, canary or None, changes, on_event=take)
    record_path = locate(workspace)
    for name in away:
        console.print(f"testing the global adapter at {name}, which took no part")
        score_unseen(record_path, site_file, name)
    compare_adapters(record_path)
    facts = outcome(record_path, page)
    if as_json:
        print_json(facts)
    else:
        show(console, record_path, facts)


def _all_but(away: list[str], site_file: Path) -> list[str]:
    """Return the training sites of a site file, where the caller chose none."""
    from medflare.data.settings.site import load_site_file
    from medflare.federation.server.scorer import SERVER

    others = {*away, SERVER}
    return [name for name in sorted(load_site_file(site_file)) if name not in others]


def outcome(record_path: Path, page: bool = True) -> dict[str, Any]:
    """Return paths and headline numbers of a finished run, JSON types."""
    from medflare.core.run_record import read_record
    from medflare.reporting.page import write_page
    from medflare.reporting.score_rows import rows_of

    record = read_record(record_path)
    folder = record_path.parent
    paths = {name: str(folder / path) for name, path in record.artefacts.items()}
    paths["record"] = str(record_path)
    for item in record.evaluations:
        own = folder / str(item.predictions or "") if item.adapter == "personalised" else None
        if own is not None and (own.parent / "personalised").is_dir():
            paths[f"{item.site} keeps"] = str((own.parent / "personalised").resolve())
    if page:
        paths["page"] = str(write_page(record_path))
    return {
        "status": record.status,
        "rounds": len(record.rounds),
        "results": [row.as_json() for row in rows_of([record])],
        "paths": paths,
    }


def show(console: Any, record_path: Path, facts: dict[str, Any]) -> None:
    """The results table and where everything lies."""
    import os

    from rich.table import Table

    from medflare.core.run_record import read_record
    from medflare.reporting.score_rows import rows_of
    from medflare.reporting.tables import results_table

    console.print(results_table(rows_of([read_record(record_path)]), SHOWN))
    places = Table(title="what the run made", show_header=False, title_justify="left")
    for name, path in facts["paths"].items():
        places.add_row(name, os.path.relpath(path))
    console.print(places)
