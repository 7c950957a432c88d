# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort`: look at a hospital's files, and make the synthetic hospitals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from medflare.cli import cohort_canaries, cohort_commonest, cohort_init, cohort_make
from medflare.cli.output import JSON_OPTION, ItemBatch, plain_errors, print_json
from medflare.data.cohort_summary import summarise

app = typer.Typer(help="Look at a hospital's files, or make the synthetic hospitals.", no_args_is_help=True)
app.command()(cohort_init.init)
app.command()(cohort_make.partition)
app.command()(cohort_make.make)
app.command()(cohort_canaries.canaries)
app.command()(cohort_commonest.commonest)


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
    images: bool = typer.Option(
        True, "--images/--no-images", help="Open every image too, as a training would; or read tables alone."
    ),
    identifiers: bool = typer.Option(
        False,
        "--identifiers",
        help="Look for names, dates, numbers and addresses in texts, DICOM headers and pictures.",
    ),
    skipped: Path | None = typer.Option(
        None, "--skipped", help="CSV file to write: every record that is left out, with its reason."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Counts patients, studies, labels, entities, questions, and what was skipped and why.

    [bold]Example[/bold]: medflare cohort inspect /data/iu --format iu_xray --json
    [bold]Example[/bold]: medflare cohort inspect /data/notes --format brat --label-map mtsamples
    """
    from medflare.cli.cohort_view import print_copies, print_heterogeneity, print_repeated, print_summary
    from medflare.cli.identifier_view import print_identifiers
    from medflare.data.cohort_summary import repeated_reports
    from medflare.data.heterogeneity import heterogeneity
    from medflare.data.near_copies import near_copies
    from medflare.data.text_heterogeneity import text_heterogeneity

    configs = _sites(source, format, label_map, site)
    cohorts, batch = dict[str, tuple[Any, dict[str, Any]]](), ItemBatch()
    for name, config in configs.items():
        with batch.item(name or source):
            cohorts[name] = _open(config, images)
    batch.require_some()
    summaries = [summary for _, summary in cohorts.values()]
    reports = _identifiers(configs, cohorts, images) if identifiers else {}
    for name, report in reports.items():
        cohorts[name][1]["identifiers"] = report.to_json()
    if skipped is not None:
        _write_skipped(skipped, {name: cohort for name, (cohort, _) in cohorts.items()})
    if as_json:
        print_json(summaries[0] if len(configs) == 1 else summaries)
        batch.finish()
        return
    for cohort, summary in cohorts.values():
        print_summary(summary)
        print_repeated(repeated_reports(cohort))
    notes = _notes_of_all({name: cohort for name, (cohort, _) in cohorts.items()})
    print_copies(near_copies(notes), sum(note.split != "train" for note in notes))
    for name, report in reports.items():
        print_identifiers(name or str(source), report)
    studies = {name: cohort.studies for name, (cohort, _) in cohorts.items() if cohort.studies}
    if len(studies) > 1:
        print_heterogeneity(heterogeneity(studies))
    texts = {name: cohort.questions or cohort.summaries for name, (cohort, _) in cohorts.items()}
    if len(texts := {name: records for name, records in texts.items() if records}) > 1:
        print_heterogeneity(text_heterogeneity(texts))
    batch.finish()


def _identifiers(configs: Mapping[str, Any], cohorts: Mapping[str, Any], pixels: bool) -> dict[str, Any]:
    """Return site -> what its texts, headers and pictures hold that identifies people."""
    from medflare.data.deidentification import detector_of
    from medflare.data.identifier_report import report_identifiers

    return {
        name: report_identifiers(cohort, detector_of(configs[name].cohort[0]), pixels)
        for name, (cohort, _) in cohorts.items()
    }


def _notes_of_all(cohorts: Mapping[str, Any]) -> list[Any]:
    """Return the notes of all hospitals, whose model is tested at each; of several with the site before ids.

    The notes of the entry `server` are left out: nobody trains on them.
    """
    from dataclasses import replace

    from medflare.federation.server.scorer import SERVER

    hospitals = {name: cohort for name, cohort in cohorts.items() if name != SERVER}
    return [
        replace(note, note_id=f"{name}: {note.note_id}") if len(hospitals) > 1 else note
        for name, cohort in hospitals.items()
        for note in cohort.notes
    ]


def _write_skipped(path: Path, cohorts: Mapping[str, Any]) -> None:
    """Write site, record, reason and detail of what every cohort leaves out."""
    import csv

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out)
        table.writerow(("site", "record", "reason", "detail"))
        for site, cohort in cohorts.items():
            table.writerows((site, item.record, item.reason, item.detail) for item in cohort.skipped)


def _sites(source: Path, format: str | None, label_map: str | None, site: str | None) -> dict[str, Any]:
    """Site -> its settings, of a site.yaml or of one folder of files."""
    from medflare.core.config import parse
    from medflare.core.errors import ConfigError
    from medflare.data.settings.site import SiteConfig, load_site_file

    if label_map is not None and format is None:
        raise ConfigError("--label-map goes with --format; a site.yaml has its own 'label_map'.")
    configs: dict[str, Any]
    if format is not None:
        mapped = {} if label_map is None else {"label_map": label_map}
        document = {
            "name": source.name,
            "cohort": {"format": format, "root": str(source.resolve()), **mapped},
        }
        configs = {source.name: parse(SiteConfig, document, str(source))}
    elif source.is_dir() and not (source / "site.yaml").is_file():
        configs = {source.name: _guessed(source)}
    else:
        configs = load_site_file(source)
    if site is None:
        return configs
    if site not in configs:
        raise ConfigError(f"{source}: has no site '{site}'. It has: {', '.join(sorted(configs))}.")
    return {site: configs[site]}


def _guessed(folder: Path) -> Any:
    """Return the settings of a folder whose layout tells its format, so that --format is not needed."""
    from medflare.core.config import parse
    from medflare.core.errors import ConfigError, DataError
    from medflare.data.detection.formats import guess_cohort
    from medflare.data.settings.formats import FORMATS
    from medflare.data.settings.site import SiteConfig

    try:
        guess = guess_cohort(folder)
    except DataError as error:
        raise ConfigError(f"{error} Or say it with --format: {', '.join(sorted(FORMATS))}.") from None
    typer.secho(f"read as {guess.format}: {guess.reasons['format']}", err=True, dim=True)
    cohort = {"format": guess.format, "root": str(folder.resolve()), **guess.settings}
    return parse(SiteConfig, {"name": folder.name, "cohort": cohort}, str(folder))


def _open(config: Any, images: bool) -> tuple[Any, dict[str, Any]]:
    """Return the cohort of a site and its summary; with `images`, after opening them all."""
    from medflare.data.load import load_cohort
    from medflare.data.samples import open_samples

    cohort = load_cohort(config)
    if not (images and cohort.studies):
        return cohort, summarise(cohort)
    samples = open_samples(config, 64)
    return samples.cohort, summarise(samples.cohort) | {"usable_images": len(samples)}
