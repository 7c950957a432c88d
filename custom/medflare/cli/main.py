# SPDX-License-Identifier: Apache-2.0
"""The `medflare` command. Each group lives in a module of its own and imports what it needs when it runs.

Exit codes: 0 done, 1 other error, 2 wrong settings or arguments, 3 data cannot be used, 4 tensors do not
match, 5 a run did not produce what it should, 6 the operating system refused a file, 7 some files of several
could not be used, 128 + n stopped by signal n.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper

import typer

from medflare.cli import (
    audit,
    benchmark,
    cohort,
    egress,
    extract,
    generate,
    job,
    kits,
    knowledge,
    listings,
    models,
    preflight,
    reports,
    resume,
    run,
    runs,
    serve,
    status,
)
from medflare.core.library_logs import quiet_bitsandbytes
from medflare.version import __version__

app = typer.Typer(
    name="medflare",
    help="Hospitals train medical language models together without moving patient data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(cohort.app, name="cohort")
app.add_typer(benchmark.app, name="benchmark")
app.add_typer(job.app, name="job")
app.add_typer(kits.app, name="kits")
app.add_typer(egress.app, name="egress")
app.add_typer(knowledge.app, name="knowledge")
app.add_typer(models.app, name="models")
app.add_typer(runs.app, name="runs")
app.command("preflight")(preflight.preflight)
app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("pause")(resume.pause)
app.command("status")(status.status)
app.command("serve")(serve.serve)
app.command("track")(serve.track)
app.command("evaluate")(reports.evaluate)
app.command("generate")(generate.generate)
app.command("extract")(extract.extract)
app.command("audit")(audit.audit)
app.command("page")(reports.page)
app.command("rules")(listings.rules)
app.command("methods")(listings.methods)
app.command("plugins")(listings.plugins)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Hospitals train medical language models together without moving patient data."""


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a letter that a terminal has not is shown by its number
            stream.reconfigure(errors="backslashreplace")
    quiet_bitsandbytes()
    app()


if __name__ == "__main__":
    main()
