# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate | page`: commands on a finished run."""

from __future__ import annotations

from pathlib import Path

import typer

from medflare.cli.output import JSON_OPTION, names, plain_errors, print_json
from medflare.core.option_values import read_pairs


@plain_errors
def evaluate(
    runs: list[Path] = typer.Argument(
        ...,
        metavar="RUN",
        help="A run's folder or run.json; a result/adapter folder; or files of extraction predictions "
        "(.jsonl).",
    ),
    site_file: Path | None = typer.Option(None, "--site-file", "-f", help="site.yaml of the sites to test."),
    sites: str | None = typer.Option(
        None, "--sites", help="Which of them; default all. Names the site of a file without names."
    ),
    adapter: str = typer.Option(
        "final", "--adapter", help="final or best; the record has the scores of the final one alone."
    ),
    personalised: Path | None = typer.Option(None, "--personalised", help="A site's own adapter folder."),
    split: str = typer.Option("test", "--split", help="train, val, test, or all of them."),
    scorer: list[str] = typer.Option(
        [], "--scorer", help="name=folder of local weights, e.g. chexbert=/models/chexbert."
    ),
    reference_words: int | None = typer.Option(
        None,
        "--reference-words",
        min=1,
        help="Reports, scores by R2Gen's rules: words of a reference that count. PromptMRG counts 100.",
    ),
    against: list[Path] = typer.Option(
        [], "--against", help="Another system's extraction predictions of the same notes, to compare with."
    ),
    types: bool = typer.Option(True, help="Break extraction scores down by type."),
    zero_shot: bool = typer.Option(
        False, "--zero-shot", help="Test the run's language model without its adapter, to compare with."
    ),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help="Test the first N records alone; the record of the run stays as it is."
    ),
    batch: int | None = typer.Option(None, "--batch", min=1, help="Prompts of one batch."),
    unseen: bool = typer.Option(
        False,
        "--unseen",
        help="An adapter folder without its run: the sites took no part, so records without a split are all "
        "tested.",
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Tests a run's adapter on sites' own studies; adds the final adapter's scores to the record.

    An adapter folder that came without its run is tested too; its predictions lie beside it. Without a site
    file: scores extraction predictions that are already there.

    [bold]Examples[/bold]: medflare evaluate runs/20261120-fedmrg -f cohorts/site.yaml --sites hospital-4
    medflare evaluate runs/20261120-fed_medlora -f site.yaml --zero-shot
    medflare evaluate fedmedlora.jsonl --against zero-shot.jsonl
    """
    from medflare.core.errors import ConfigError
    from medflare.data.records import SPLITS
    from medflare.tasks.scoring import EVERY_SPLIT, EvaluationOptions

    if split not in (*SPLITS, EVERY_SPLIT):
        raise ConfigError(f"--split {split}: expected {', '.join((*SPLITS, EVERY_SPLIT))}.")
    if site_file is None:
        from medflare.cli.evaluate_extraction import score_files

        test_options = {
            "--adapter": adapter != "final",
            "--personalised": personalised,
            "--scorer": scorer,
            "--zero-shot": zero_shot,
            "--limit": limit,
            "--batch": batch,
            "--reference-words": reference_words,
            "--unseen": unseen,
        }
        if any(test_options.values()):
            given = ", ".join(name for name, value in test_options.items() if value)
            raise ConfigError(f"{given}: says how to test an adapter, which needs --site-file.")
        score_files(runs, against, sites=names(sites), split=split, by_type=types, as_json=as_json)
        return
    if len(runs) != 1 or against:
        raise ConfigError("--site-file tests the adapter of one run; name one run, and no --against.")
    if adapter not in ("final", "best"):
        raise ConfigError(f"--adapter {adapter}: expected final or best.")
    if zero_shot and (personalised or adapter != "final"):
        raise ConfigError(
            "--zero-shot tests the model without any adapter; leave --personalised and --adapter out."
        )
    if not types:
        raise ConfigError("--no-types is for files of predictions; leave it out beside --site-file.")
    from medflare.cli.evaluate_adapter import test_adapter

    test_adapter(
        runs[0],
        site_file,
        names(sites),
        as_json,
        EvaluationOptions(limit=limit, batch=batch, zero_shot=zero_shot, reference_words=reference_words),
        adapter=adapter,
        unseen=unseen,
        personalised=personalised,
        split=split,
        scorers={key: str(value) for key, value in read_pairs(scorer).items()},
    )


@plain_errors
def page(
    run: Path = typer.Argument(..., help="A run's folder, or its run.json."),
    out: Path | None = typer.Option(None, "--out", "-o", help="The HTML file; default beside the record."),
    gallery: int = typer.Option(
        4, "--gallery", min=0, help="Studies shown of each site; 0 leaves patients out."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Writes one self-contained HTML page: curves, sites, traffic, scores, and drafts beside references.

    [bold]Example[/bold]: medflare page runs/20261120-fedmrg --gallery 0
    """
    from medflare.recipes.after_run import locate
    from medflare.reporting.page import write_page

    written = write_page(locate(run), out, gallery)
    if as_json:
        print_json({"page": str(written)})
    else:
        typer.echo(str(written))
