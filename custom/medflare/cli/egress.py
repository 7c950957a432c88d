# SPDX-License-Identifier: Apache-2.0
"""`medflare egress`: what left this hospital, for those who answer for it."""

from __future__ import annotations

from pathlib import Path

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

app = typer.Typer(help="What left this hospital, message by message.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Report what left this hospital, message by message."""


@app.command()
@plain_errors
def report(
    folders: list[Path] = typer.Argument(
        None, metavar="[FOLDER]...", help="A site's kit, a workspace or a run's folder; default: here."
    ),
    job: str | None = typer.Option(None, "--job", help="One job, by its name or the beginning of its id."),
    site: str | None = typer.Option(None, "--site", help="One site of a simulator's workspace."),
    round_number: int | None = typer.Option(
        None, "--round", min=0, help="One round, counted from 1; 0 for what left before the first."
    ),
    names: bool = typer.Option(False, "--names", help="Name every tensor with its shape and dtype."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Reads the ledgers below the folders: what left, what was held back, and whether the ledgers are whole.

    Exit codes: 0 all ledgers are whole, 3 there is no ledger, or a line of one is broken or does not fit.

    [bold]Example[/bold]: medflare egress report /opt/medflare/site-1 --job fedmrg --names
    """
    from medflare.cli.egress_view import print_report
    from medflare.core.errors import DataError
    from medflare.egress.report import LineFilter, facts_of, find_ledgers, read_ledger

    ledgers = [read_ledger(path) for path in find_ledgers(folders or [Path()])]
    chosen = LineFilter(job=job, site=site, round=None if round_number is None else round_number - 1)
    facts = facts_of(ledgers, chosen)
    if as_json:
        print_json(facts)
    else:
        print_report(facts, names)
    if facts["problems"]:
        raise typer.Exit(DataError.exit_code)
