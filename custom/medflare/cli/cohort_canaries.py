# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort canaries`: a site's cohort with made-up secrets in it, to audit what training keeps."""

from __future__ import annotations

from pathlib import Path

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json


@plain_errors
def canaries(
    site_file: Path = typer.Argument(..., metavar="SITE.yaml", help="The site's own site.yaml."),
    out: Path = typer.Argument(..., help="Folder to make: site.yaml, the canaries, the secret list."),
    count: int = typer.Option(100, "--count", min=2, max=100_000, help="Canaries; about half are included."),
    repeat: str = typer.Option("1", "--repeat", help="Records of a canary, dealt in turn, as 1,4,16."),
    site: str | None = typer.Option(None, "--site", help="Which site of a site.yaml with several."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Adds made-up patients with random secrets to a site's training data, as one more cohort beside its own.

    A fair coin decides for each canary whether it is included. Train with OUT/site.yaml, then audit with
    --canaries OUT/canaries.json. Never use the adapter for patients: it has learnt nonsense.

    [bold]Example[/bold]: medflare cohort canaries site.yaml audit/ --count 200 --repeat 1,4,16
    """
    import random

    from medflare.auditing.canaries import make_canaries, task_of_cohort, write_canaries
    from medflare.core.errors import ConfigError
    from medflare.data.load import load_cohort
    from medflare.data.notes.note_tables import coverage
    from medflare.data.settings.site import load_site_file

    if out.exists():
        raise ConfigError(f"{out}: is there already; name a folder that is not.")
    sites = load_site_file(site_file)
    name = site if site is not None else next(iter(sites))
    if name not in sites or (site is None and len(sites) > 1):
        raise ConfigError(f"{site_file}: name one of its sites with --site: {', '.join(sorted(sites))}.")
    config = sites[name]
    cohort = load_cohort(config)
    task, covers = task_of_cohort(cohort), coverage(cohort.notes)
    made = make_canaries(task, count, _repeats(repeat), random.SystemRandom(), covers.heads)
    written = write_canaries(config, made, out, covers)
    included = sum(canary.included for canary in made.canaries)
    if as_json:
        print_json({"task": task, "count": count, "included": included, "site_file": str(written)})
    else:
        typer.echo(f"{included} of {count} canaries included: {written}")


def _repeats(text: str) -> list[int]:
    """Return `1,4,16` as numbers.

    Raises:
        ConfigError: one is no number from 1 to 1000.
    """
    from medflare.core.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1000 for part in parts):
        raise ConfigError(f"--repeat {text}: expected numbers from 1 to 1000, as 1,4,16.")
    return [int(part) for part in parts]
