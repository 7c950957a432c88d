# SPDX-License-Identifier: Apache-2.0
"""`medflare generate`: a run's model drafts reports of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, plain_errors, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from medflare.tasks.reports.drafting import ReportDraft


@plain_errors
def generate(
    images: list[Path] = typer.Argument(
        ..., help="Radiographs: PNG, JPEG, TIFF, DICOM or NIfTI; or folders of them."
    ),
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
    age: float | None = typer.Option(
        None, "--age", min=0, max=130, help="FedTAR: years of the patient; default as the DICOM header says."
    ),
    sex: str | None = typer.Option(None, "--sex", help="FedTAR: F or M; default as the DICOM header says."),
    prior: Path | None = typer.Option(
        None,
        "--prior",
        help="FedTAR: the report of the patient's visit before, a text file; default a first visit.",
    ),
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
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace drafts that are already there."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Drafts a report for each image. A draft for a radiologist to check, never a diagnosis.

    A file whose header says that it is no radiograph of a chest is left out, and so is an image that is
    unlike all training images; what is in doubt stands beside the draft. An image that cannot be used costs
    no other one its draft; exit code 7 says that some were left out.

    [bold]Examples[/bold]: medflare generate chest.dcm -r runs/20261120-fedmrg
    medflare generate export -r runs/20261120-fedmrg --out drafts --format fhir
    medflare generate today.png -r runs/20261120-fedtar --age 61 --sex F --prior march.txt
    """
    from medflare.cli.opened_generator import open_generator, patient_of_command
    from medflare.core.origin import DRAFT
    from medflare.models.backbone import device_of
    from medflare.tasks.output_files import distinct_names
    from medflare.tasks.reports.draft_files import write_fhir
    from medflare.tasks.reports.drafting import BATCH

    named = list(distinct_names(_files(images)).items())
    _check_files(out, format_, identifiers, [] if overwrite else [name for _, name in named])
    generator = open_generator(
        result,
        personalised,
        reference,
        patient_of_command(age, sex, prior),
        backbone=backbone,
        precision=precision,
        device=device_of(device),
    )
    drafts: list[ReportDraft] = []
    files: list[Path] = []
    batch = ItemBatch()
    if not as_json:
        typer.secho(f"{DRAFT} {generator.origin.words}\n", fg="yellow")
    for start in range(0, len(named), BATCH):
        opened = []
        for path, name in named[start : start + BATCH]:
            with batch.item(path, last=False):
                opened.append(generator.open_image(path, name, refuse=not implausible))
        for draft in generator.draft(opened):
            drafts.append(draft)
            if not as_json:
                _print(draft)
            with batch.item(draft.image):
                files += _write(draft, out, format_, identifiers) if out is not None else []
    batch.require_some()
    if out is not None and format_ == "fhir":
        files.append(write_fhir(drafts, out, identifiers))
    if as_json:
        print_json([draft.as_json() for draft in drafts])
    elif out is not None:
        typer.echo(f"{len(files)} file(s) in {out}")
    batch.finish()


def _check_files(out: Path | None, format_: str, identifiers: bool, names: Sequence[str]) -> None:
    """Refuse options of files that do not fit, and to replace the drafts `names` that are there already.

    Raises:
        ConfigError: says which, and what to do.
    """
    from medflare.core.errors import ConfigError
    from medflare.tasks.output_files import refuse_to_replace
    from medflare.tasks.reports.draft_files import FORMATS, files_of

    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: expected one of {', '.join(FORMATS)}.")
    if out is None and (format_ != "txt" or identifiers):
        raise ConfigError("--format and --identifiers are for files: name their folder with --out.")
    if out is not None and names:
        refuse_to_replace(out, files_of(names, format_), "drafts that somebody has corrected")


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the image files that were named, and those of the folders among them.

    Raises:
        DataError: a folder holds none.
    """
    from medflare.core.errors import DataError
    from medflare.data.image_files import image_files

    files = list[Path]()
    for path in paths:
        found = image_files(path) if path.is_dir() else [path]
        if not found:
            raise DataError(f"{path}: holds no image. Expected PNG, JPEG, TIFF, DICOM or NIfTI files.")
        files += found
    return files


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
