# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort`: look at a hospital's files, and make the synthetic hospitals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

app = typer.Typer(help="Look at a hospital's files, or make the synthetic hospitals.", no_args_is_help=True)


@app.command()
@plain_errors
def inspect(
    source: Path = typer.Argument(..., help="A folder of files, or a site.yaml."),
    format: str | None = typer.Option(
        None, "--format", help="Reader for a folder; a site.yaml names its own."
    ),
    label_map: str | None = typer.Option(
        None,
        "--label-map",
        help="For notes: a corpus's labels, as mtsamples, maccrobat, chia, phee, i2b2_2010.",
    ),
    site: str | None = typer.Option(None, "--site", help="Which site of a site.yaml; default all."),
    images: bool = typer.Option(False, "--images", help="Decode every image too, as a training would."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Counts patients, studies, labels, entities, relations, and what was skipped and why.

    [bold]Example[/bold]: medflare cohort inspect /data/iu --format iu_xray --json
    [bold]Example[/bold]: medflare cohort inspect /data/notes --format brat --label-map mtsamples
    """
    from medflare.cli.cohort_view import print_heterogeneity, print_summary
    from medflare.cohort.heterogeneity import heterogeneity
    from medflare.cohort.site import SiteConfig, load_site_file
    from medflare.config import parse
    from medflare.errors import ConfigError

    if label_map is not None and format is None:
        raise ConfigError("--label-map goes with --format; a site.yaml has its own 'label_map'.")
    if format is not None:
        mapped = {} if label_map is None else {"label_map": label_map}
        document = {
            "name": source.name,
            "cohort": {"format": format, "root": str(source.resolve()), **mapped},
        }
        found = {source.name: parse(SiteConfig, document, str(source))}
    elif source.is_dir() and not (source / "site.yaml").is_file():
        found = {source.name: _guessed(source)}
    else:
        found = load_site_file(source)
    if site is not None:
        if site not in found:
            raise ConfigError(f"{source}: has no site '{site}'. It has: {', '.join(sorted(found))}.")
        found = {site: found[site]}
    cohorts = {name: _open(config, images) for name, config in found.items()}
    summaries = [summary for _, summary in cohorts.values()]
    if as_json:
        print_json(summaries[0] if len(summaries) == 1 else summaries)
        return
    for summary in summaries:
        print_summary(summary)
    studies = {name: cohort.studies for name, (cohort, _) in cohorts.items() if cohort.studies}
    if len(studies) > 1:
        print_heterogeneity(heterogeneity(studies))


def _guessed(folder: Path) -> Any:
    """A folder with a manifest of ours needs no --format."""
    from medflare.cohort.readers import FORMATS
    from medflare.cohort.site import SiteConfig
    from medflare.config import parse
    from medflare.errors import ConfigError

    if any((folder / name).is_file() for name in ("manifest.jsonl", "manifest.csv")):
        return parse(
            SiteConfig,
            {"name": folder.name, "cohort": {"format": "manifest", "root": str(folder.resolve())}},
            str(folder),
        )
    raise ConfigError(
        f"{folder}: has no manifest; say what it is with --format. Formats: {', '.join(sorted(FORMATS))}."
    )


def _open(config: Any, images: bool) -> tuple[Any, dict[str, Any]]:
    """The cohort of a site and its summary; with `images`, after decoding them all."""
    from medflare.cohort.samples import open_samples
    from medflare.cohort.site import load_cohort

    if not images:
        cohort = load_cohort(config)
        return cohort, cohort.summary()
    samples = open_samples(config, 64)
    return samples.cohort, samples.cohort.summary() | {"usable_images": len(samples)}


@app.command()
@plain_errors
def partition(
    source: Path = typer.Argument(..., help="site.yaml of one site: the pooled cohort."),
    out: Path = typer.Argument(..., help="Folder for a manifest of each site and a site.yaml."),
    sites: int = typer.Option(3, "--sites", min=2, help="How many sites."),
    method: str = typer.Option(
        "random_stratified", "--method", help="random_stratified, report_clusters or dirichlet."
    ),
    alpha: float = typer.Option(0.5, "--alpha", help="Dirichlet concentration; small is uneven."),
    seed: int = typer.Option(0, "--seed"),
    scanners: bool = typer.Option(True, help="Give every site its own blur, contrast and brightness."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Deals one pooled cohort to several sites, by patient, and reports how much they differ.

    [bold]Example[/bold]: medflare cohort partition iu.yaml parts --sites 10 --method dirichlet --alpha 0.3
    """
    from medflare.cli.cohort_view import print_heterogeneity
    from medflare.cohort.heterogeneity import heterogeneity
    from medflare.cohort.partition import PartitionPlan, write_partition
    from medflare.cohort.site import load_cohort, load_site_file
    from medflare.errors import ConfigError

    found = load_site_file(source)
    if len(found) != 1:
        raise ConfigError(f"{source}: describes {len(found)} sites; expected one, the pooled cohort.")
    plan = PartitionPlan(
        sites=tuple(f"site-{i + 1}" for i in range(sites)),
        method=method,
        alpha=alpha,
        seed=seed,
        scanners=scanners,
    )
    path = write_partition(load_cohort(next(iter(found.values()))).studies, plan, out)
    dealt = {name: load_cohort(config).studies for name, config in load_site_file(path).items()}
    facts = heterogeneity({name: studies for name, studies in dealt.items() if studies})
    if as_json:
        print_json({"site_file": str(path), **facts})
        return
    print_heterogeneity(facts)
    typer.echo(f"site file: {path}")


@app.command()
@plain_errors
def make(
    out: Path = typer.Argument(..., help="Folder to write the hospitals into."),
    patients: int = typer.Option(
        0, "--patients", help="Patients of each hospital; 0 for each one's own number."
    ),
    visits: int = typer.Option(
        1,
        "--visits",
        min=1,
        help="T planned visits of each patient; above 1 findings change and reports say how.",
    ),
    size: int = typer.Option(128, "--size", help="Pixels of a side."),
    seed: int = typer.Option(0, "--seed", help="Other patients, same hospitals."),
    sheet: bool = typer.Option(True, help="Write contact_sheet.png too."),
    notes: bool = typer.Option(
        False, "--notes", help="Clinical notes with entities and modifiers, a patient each, no radiographs."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Writes three synthetic hospitals, an unseen fourth, and a site.yaml for the simulator.

    [bold]Examples[/bold]: medflare cohort make cohorts --patients 300
    medflare cohort make visit-cohorts --visits 5
    medflare cohort make note-cohorts --notes
    """
    if notes:
        from medflare.cohort.synthetic.notes import write_notes_demo

        counts = write_notes_demo(out, patients, seed)
    elif visits > 1:
        from medflare.cohort.synthetic.follow_up import write_follow_up_demo

        counts = write_follow_up_demo(out, visits, patients, size, seed, sheet)
    else:
        from medflare.cohort.synthetic.demo import write_demo

        counts = write_demo(out, patients, size, seed, sheet)
    if as_json:
        facts = {name: {"patients": n, "folder": str(out / name)} for name, n in counts.items()}
        print_json({"site_file": str(out / "site.yaml"), "hospitals": facts})
        return
    for name, count in counts.items():
        typer.echo(f"{name}: {count} patients in {out / name}")
    typer.echo(f"site file: {out / 'site.yaml'}")
