# SPDX-License-Identifier: Apache-2.0
"""`medflare benchmark`: builds the papers' benchmarks of federated report generation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from medflare.cli.benchmark_texts import medlora, questions
from medflare.cli.output import JSON_OPTION, plain_errors, print_json

app = typer.Typer(help="The papers' benchmarks: their partitions of public data.", no_args_is_help=True)
app.command()(medlora)
app.command()(questions)


@app.callback()
def group() -> None:
    """The papers' benchmarks: their partitions of public data."""


@app.command("fl-mrg")
@plain_errors
def fl_mrg(
    out: Path = typer.Argument(..., help="Folder for the benchmark; its index lies in OUT.index."),
    mimic_cxr: Path | None = typer.Option(
        None,
        "--mimic-cxr",
        help="MIMIC-CXR-JPG: its lists and files/, mimic-cxr-reports below it.",
    ),
    iu_xray: Path | None = typer.Option(
        None, "--iu-xray", help="IU X-Ray: R2Gen's annotation.json, the usual CSV files, or Open-i's XML."
    ),
    chexpert_plus: Path | None = typer.Option(
        None, "--chexpert-plus", help="CheXpert Plus: df_chexpert_plus_*.csv and its images."
    ),
    reports: Path | None = typer.Option(
        None, "--reports", help="Folder of MIMIC-CXR's reports, where it is not below --mimic-cxr."
    ),
    demographics: Path | None = typer.Option(
        None, "--demographics", help="MIMIC-IV's patients table, for longitudinal."
    ),
    setting: str = typer.Option(
        "random", "--setting", help="random, cluster, dirichlet, real-world, fedvit-gpt2 or longitudinal."
    ),
    clients: int | None = typer.Option(
        None,
        "--clients",
        help="2 to 10; default 10, and 4 for longitudinal. real-world has 6, fedvit-gpt2 4.",
        show_default=False,
    ),
    alpha: float | None = typer.Option(None, "--alpha", help="Of dirichlet, 0.1 to 0.9; default 0.5."),
    client_images: tuple[int, int] | None = typer.Option(
        None,
        "--client-images",
        help="Fewest and most images of a client of dirichlet; default 4000 7000.",
    ),
    pairs: int | None = typer.Option(
        None, "--pairs", help="Images of each source in real-world; default 55,000."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Another seed deals the records otherwise."),
    scanners: bool = typer.Option(True, help="Give every client its own blur, contrast and brightness."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Builds FedMRG's FL-MRG, FedViT-GPT2's split of IU X-Ray, or FedTAR's longitudinal clients of MIMIC-CXR.

    [bold]Examples[/bold]: medflare benchmark fl-mrg bench --mimic-cxr /data/mimic-cxr-jpg --iu-xray /data/iu
    medflare benchmark fl-mrg bench --mimic-cxr /data/mimic --iu-xray /data/iu --setting dirichlet --alpha 0.1
    """
    from medflare.benchmark.build import build
    from medflare.benchmark.settings import BenchmarkSettings
    from medflare.core.option_values import parse_options
    from medflare.models.generators.word_list import write_word_list
    from medflare.reporting.benchmark_pictures import write_pictures

    given = {
        "setting": setting,
        "mimic_cxr": mimic_cxr,
        "iu_xray": iu_xray,
        "chexpert_plus": chexpert_plus,
        "reports": reports,
        "demographics": demographics,
        "clients": clients or (4 if setting == "longitudinal" else None),
        "alpha": alpha,
        "client_images": client_images,
        "pairs": pairs,
        "seed": seed,
        "scanners": scanners,
    }
    settings = parse_options(BenchmarkSettings, given, "options of medflare benchmark fl-mrg")

    def finish(folder: Path, facts: dict[str, Any]) -> None:
        """Add what needs other rooms, before the folder is put in its place."""
        write_pictures(facts["clients"], folder)
        facts["vocabulary"] = write_word_list(_training_reports(folder), folder / "vocabulary")

    facts = build(settings, out, finish, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(facts)
        return
    _print(facts)
    typer.echo(f"benchmark: {out}; clients: {out / 'site.yaml'}; vocabulary: {facts['vocabulary']} tokens")


@app.command("run")
@plain_errors
def run(
    comparison: Path = typer.Argument(..., help="FL.yaml: methods, settings and seeds of a comparison."),
    out: Path = typer.Option(Path("studies"), "--out", help="Folder of results; finished units stay."),
    methods: str | None = typer.Option(None, "--methods", help="Some of them, with commas."),
    seeds: str | None = typer.Option(None, "--seeds", help="Some of them, with commas."),
    minutes: float | None = typer.Option(
        None, "--minutes", help="After so many a training stops when its round is done, to be gone on with."
    ),
) -> None:
    """Trains methods on a benchmark and writes the papers' tables, ours beside the published figures.

    [bold]Example[/bold]: medflare benchmark run fl_mrg.yaml --out studies --methods transformer,fedmrg
    """
    from medflare.core.config import parse
    from medflare.core.errors import ConfigError, RunError

    root = Path(__file__).parents[3]
    if not (root / "method_comparison").is_dir():
        raise ConfigError(
            "medflare benchmark run needs a checkout of the repository, whose method_comparison/ runs the "
            "comparison; the installed package has no such folder. Clone it and run the command there."
        )
    sys.path.insert(0, str(root))
    from method_comparison.configuration import Selection, read_configuration
    from method_comparison.page import write_page
    from method_comparison.runner import Comparison, end_after, run_units

    if not comparison.is_file():
        raise ConfigError(f"{comparison}: no such file; docs/how-to/reproduce-the-papers.md has one.")
    chosen_rows = {"methods": methods, "seeds": seeds}
    wanted = parse(Selection, {key: _some(text) for key, text in chosen_rows.items()}, "the options")
    chosen = Comparison.of(comparison.stem, read_configuration(comparison.stem, comparison.parent), wanted)
    not_trained = run_units(chosen, out, end_after(minutes), typer.echo)
    command = ["medflare", "benchmark", "run", str(comparison), "--out", str(out)]
    command += [
        word for key, text in (("--methods", methods), ("--seeds", seeds)) if text for word in (key, text)
    ]
    typer.echo(str(write_page(chosen, out, out / "pages", shlex.join(command))))
    if failed := not_trained.failed:
        raise RunError(f"{len(failed)} unit(s) failed: {', '.join(failed)}; see error.txt in their folders.")
    if left_out := not_trained.left_out:
        raise ConfigError(f"{len(left_out)} unit(s) need what is not on this machine: {', '.join(left_out)}.")


def _some(text: str | None) -> tuple[str | int, ...] | None:
    """Return what stands between the commas, numbers as such; None for all of it."""
    parts = None if text is None else (part.strip() for part in text.split(","))
    return None if parts is None else tuple(int(part) if part.isdecimal() else part for part in parts)


def _training_reports(folder: Path) -> Iterator[str]:
    import json

    for path in sorted(folder.glob("*/manifest.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if row["split"] == "train":
                    yield row["report"]


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("client", "patients", "studies", "images", "divergence", "median words", "overlap")
    for name, row in facts["clients"].items():
        numbers = (row["patients"], row["studies"], row["images"], row["divergence"])
        table.add_row(name, *map(str, numbers), str(row["words"]["50"]), str(row["overlap"]))
    Console().print(table)
    for place, counts in facts["splits"].items():
        if place.endswith("/test"):
            typer.echo(f"{place}: {counts['studies']} studies, {counts['images']} images")
