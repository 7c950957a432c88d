# SPDX-License-Identifier: Apache-2.0
"""`medflare generate`: a run's model drafts reports of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.tasks.reports.drafting import ReportDraft

FORMATS = ("txt", "fhir", "dicom-sr")


@plain_errors
def generate(
    images: list[Path] = typer.Argument(..., help="Radiographs: PNG, JPEG, DICOM or NIfTI."),
    result: Path = typer.Option(..., "--result", "-r", help="A run's folder, or a result/adapter folder."),
    personalised: Path | None = typer.Option(
        None, "--personalised", "-p", help="A site's own adapter folder."
    ),
    reference: Path | None = typer.Option(
        None,
        "--reference",
        help="A site's result folder, whose images new ones are compared with; default those of the run's "
        "sites that are on this machine.",
    ),
    implausible: bool = typer.Option(
        False, "--implausible", help="Draft also of images that are unlike all training images."
    ),
    backbone: Path | None = typer.Option(
        None,
        "--backbone",
        help="Folder of the base model; default that of the run, where it is on this machine.",
    ),
    precision: str = typer.Option("auto", "--precision", help="auto, fp32, bf16, int8 or nf4."),
    device: str = typer.Option("cpu", "--device", help="cpu or cuda."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the files that --format writes."),
    format_: str = typer.Option(
        "txt",
        "--format",
        help="With --out: txt, fhir (drafts.ndjson: DiagnosticReports) or dicom-sr (extra dicom-sr).",
    ),
    identifiers: bool = typer.Option(
        False,
        "--identifiers",
        help="Files keep the patient's name and numbers of the DICOM header: for use inside the hospital.",
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Drafts a report for each image. A draft for a radiologist to check, never a diagnosis.

    A file whose header says that it is no radiograph of a chest is left out, and so is an image that is
    unlike all training images; what is in doubt stands beside the draft. An image that cannot be used costs
    no other one its draft; exit code 7 says that some were left out.

    [bold]Examples[/bold]: medflare generate chest.dcm -r runs/20261120-fedmrg
    medflare generate export/*.dcm -r runs/20261120-fedmrg --out drafts --format fhir
    """
    from medflare.core.errors import ConfigError
    from medflare.core.origin import DRAFT
    from medflare.models.backbone import device_of
    from medflare.models.report_result import load_generator
    from medflare.recipes.result_origin import adapter_folder, origin_of, reference_files
    from medflare.tasks.reports.draft_files import write_fhir
    from medflare.tasks.reports.drafting import draft_image
    from medflare.tasks.reports.plausibility import open_references

    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: expected one of {', '.join(FORMATS)}.")
    if out is None and (format_ != "txt" or identifiers):
        raise ConfigError("--format and --identifiers are for files: name their folder with --out.")
    model, decoding = load_generator(
        adapter_folder(result),
        personalised=personalised,
        backbone=backbone,
        precision=precision,
        device=device_of(device),
    )
    references = open_references(model, reference_files(result, reference, personalised))
    origin = origin_of(result)
    drafts: list[ReportDraft] = []
    batch = ItemBatch()
    if not as_json:
        typer.secho(f"{DRAFT} {origin.words}\n", fg="yellow")
    files = list[Path]()
    for path in images:
        with batch.item(path):
            drafts.append(draft_image(model, decoding, path, origin, references, refuse=not implausible))
            if not as_json:
                _print(drafts[-1])
            if out is not None:
                files += _write(drafts[-1], out, format_, identifiers)
    batch.require_some()
    if out is not None and format_ == "fhir":
        files.append(write_fhir(drafts, out, identifiers))
    if as_json:
        print_json([draft.as_json() for draft in drafts])
    elif out is not None:
        typer.echo(f"{len(files)} file(s) in {out}")
    batch.finish()


def _print(draft: ReportDraft) -> None:
    typer.secho(str(draft.image), bold=True)
    for warning in draft.warnings:
        typer.secho(f"! {warning}", fg="yellow")
    typer.echo(f"{draft.report}\n")


def _write(draft: ReportDraft, folder: Path, format_: str, identifiers: bool) -> list[Path]:
    """Write a draft in a format that has a file of each; return the files."""
    from medflare.tasks.reports.draft_files import write_structured_report, write_text

    if format_ == "txt":
        return [write_text(draft, folder)]
    return [write_structured_report(draft, folder, identifiers)] if format_ == "dicom-sr" else []
