# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort commonest`: how one text for all does, beside which a model's scores are to be read."""

from __future__ import annotations

from pathlib import Path

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, plain_errors, print_json

SHOWN = ("accuracy", "chance", "bleu_4", "rouge_l", "label_f1")


@plain_errors
def commonest(
    site_file: Path = typer.Argument(..., metavar="SITE.yaml", help="A site.yaml, of one site or several."),
    site: str | None = typer.Option(None, "--site", help="Which site of it; default all."),
    split: str = typer.Option("test", "--split", help="Which records are scored: train, val or test."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Scores the commonest training text of each site in place of every draft. No model is used.

    Of reports and summaries it is the text that most training records have, of questions the letter that is
    right most often. A model whose scores are no higher is of no more use.

    [bold]Example[/bold]: medflare cohort commonest runs/demo/cohorts/site.yaml --site site-1
    """
    from rich.console import Console

    from medflare.core.errors import ConfigError
    from medflare.data.load import load_cohort
    from medflare.data.records import SPLITS
    from medflare.data.settings.site import load_site_file
    from medflare.federation.server.scorer import SERVER
    from medflare.reporting.score_rows import ScoreRow
    from medflare.reporting.tables import results_table
    from medflare.tasks.commonest import score_commonest

    if split not in SPLITS:
        raise ConfigError(f"--split {split}: expected {', '.join(SPLITS)}.")
    sites = {name: one for name, one in load_site_file(site_file).items() if name != SERVER}
    if site is not None and site not in sites:
        raise ConfigError(f"--site {site}: not in {site_file}. It has: {', '.join(sites)}.")
    rows, batch = list[ScoreRow](), ItemBatch()
    for name in [site] if site is not None else sites:
        with batch.item(name or site_file):
            task, found = score_commonest(load_cohort(sites[name]), split)
            rows.append(ScoreRow.of(found, task, "commonest"))
    batch.require_some()
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        Console().print(results_table(rows, SHOWN))
    batch.finish()
