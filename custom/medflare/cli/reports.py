# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate | page`: commands on a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, names, plain_errors, print_json
from medflare.core.config import read_pairs

if TYPE_CHECKING:
    from medflare.tasks.scoring import EvaluationOptions

UNNAMED = "unnamed"
"""A site.yaml of one site without a name, where --sites gives it none."""


@plain_errors
def evaluate(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN", help="A run's folder or run.json; or files of extraction predictions (.jsonl)."
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
    as_json: bool = JSON_OPTION,
) -> None:
    """Tests a run's adapter on sites' own studies; adds the final adapter's scores to the record.

    Without a site file: scores extraction predictions that are already there.

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
    if zero_shot and personalised:
        raise ConfigError("--zero-shot tests the model without any adapter; leave --personalised out.")
    _test_adapter(
        runs[0],
        site_file,
        names(sites),
        as_json,
        EvaluationOptions(limit=limit, batch=batch, zero_shot=zero_shot, reference_words=reference_words),
        adapter=adapter,
        personalised=personalised,
        split=split,
        scorers={key: str(value) for key, value in read_pairs(scorer).items()},
    )


def _test_adapter(
    run: Path,
    site_file: Path,
    sites: list[str] | None,
    as_json: bool,
    options: EvaluationOptions,
    **how: Any,
) -> None:
    """Test a run's adapter at sites and print its scores; `how` goes to `recipes.after_run.score_site`."""
    from dataclasses import replace

    from rich.console import Console

    from medflare.cli.progress import progress_bar
    from medflare.cli.run import SHOWN
    from medflare.core.errors import ConfigError
    from medflare.core.run_record import read_record
    from medflare.data.settings.site import load_site, load_site_file
    from medflare.federation.server.scorer import SERVER
    from medflare.recipes.after_run import locate, score_site
    from medflare.reporting.score_rows import rows_of
    from medflare.reporting.tables import results_table

    record_path = locate(run)
    known = sorted(set(load_site_file(site_file)) - {SERVER})
    nameless = known == [""]  # a hospital's own file, whose name FLARE knows
    if not nameless and (unknown := [name for name in sites or () if name not in known]):
        raise ConfigError(f"--sites {', '.join(unknown)}: not in {site_file}. It has: {', '.join(known)}.")
    chosen = sites or ([UNNAMED] if nameless else known)
    evaluations, batch = [], ItemBatch()
    for name in chosen:
        with batch.item(name):
            site = load_site(site_file, name)
            with progress_bar(f"testing at {name}") as progress:
                tested = score_site(record_path, site, options=replace(options, progress=progress), **how)
            evaluations.append(tested)
    batch.require_some()
    if as_json:
        print_json([item.model_dump() for item in evaluations])
        batch.finish()
        return
    console = Console()
    record = read_record(record_path)
    tested_otherwise = [
        *([f"the first {options.limit} records of each site"] if options.limit is not None else []),
        *([f"the {how['adapter']} adapter"] if how["adapter"] != "final" else []),
    ]
    if tested_otherwise:
        record.evaluations = evaluations
        what = ", ".join(tested_otherwise)
        console.print(f"{what[0].upper()}{what[1:]}; not added to the run's record.")
    rows = rows_of([record])
    console.print(
        results_table([row for row in rows if row.site in chosen and row.split == how["split"]], SHOWN)
    )
    for metric, why in {m: w for item in evaluations for m, w in item.skipped_metrics.items()}.items():
        console.print(f"{metric}: {why}", style="dim")
    batch.finish()


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
