# SPDX-License-Identifier: Apache-2.0
"""`medflare benchmark medlora` and `questions`: benchmarks of notes and of questions from named sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

SOURCES = typer.Option(
    ..., "--sources", help="A site.yaml whose sites are the data sets, each in its own format and labels."
)


@plain_errors
def medlora(
    out: Path = typer.Argument(..., help="Folder for the benchmark."),
    sources: Path = SOURCES,
    external: str = typer.Option(
        "", "--external", help="Sources that are tested as a whole and never trained on, with commas."
    ),
    train_notes: int | None = typer.Option(
        None, "--train-notes", help="Low-resource: at most so many training notes of a site."
    ),
    server_notes: int = typer.Option(
        0,
        "--server-notes",
        help="At most so many training notes of the first site, whole patients, go to the server (paper: 5).",
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Another seed deals the records otherwise."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Builds Fed-MedLoRA's settings: sites that train, external cohorts, a new site, few notes.

    [bold]Examples[/bold]: medflare benchmark medlora two --sources corpora.yaml --external utp,i2b2
    medflare benchmark medlora few --sources corpora.yaml --external yale --train-notes 20
    """
    from medflare.benchmark.notes import NotesBenchmarkSettings, build_notes
    from medflare.core.config import parse
    from medflare.data.settings.site import load_site_file

    names = tuple(name for name in external.split(",") if name)
    given = {"external": names, "train_notes": train_notes, "server_notes": server_notes, "seed": seed}
    settings = parse(NotesBenchmarkSettings, given, "options of medflare benchmark medlora")
    _say(build_notes(settings, load_site_file(sources), out), out, as_json)


@plain_errors
def questions(
    out: Path = typer.Argument(..., help="Folder for the benchmark."),
    sources: Path = SOURCES,
    setting: str = typer.Option("iid", "--setting", help="iid, class or dirichlet."),
    clients: int = typer.Option(20, "--clients", help="How many."),
    alpha: float | None = typer.Option(
        None, "--alpha", help="Of dirichlet; default 0.5, 0.1 is very uneven."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Another seed deals the records otherwise."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Builds DDCS's settings: MedQA and MedMCQA dealt to clients, with one common test set.

    [bold]Example[/bold]: medflare benchmark questions qa --sources qa.yaml --setting dirichlet --alpha 0.3
    """
    from medflare.benchmark.questions import QuestionsBenchmarkSettings, build_questions
    from medflare.core.option_values import parse_options
    from medflare.data.settings.site import load_site_file

    given = {"setting": setting, "clients": clients, "alpha": alpha, "seed": seed}
    settings = parse_options(QuestionsBenchmarkSettings, given, "options of medflare benchmark questions")
    _say(build_questions(settings, load_site_file(sources), out), out, as_json)


def _say(facts: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for place, counts in facts["splits"].items():
        typer.echo(f"{place}: {counts['records']}")
    for place, count in facts.get("tests_that_are_trained_on", {}).items():
        typer.echo(f"{place}: {count} of its notes stand word for word in the training of a site.", err=True)
    typer.echo(f"benchmark: {out}; clients: {out / 'site.yaml'}; tests: {out / 'test.yaml'}")
