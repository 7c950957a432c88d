# SPDX-License-Identifier: Apache-2.0
"""`medflare extract`: a run's model marks entities and modifiers in notes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from medflare.cli.extract_totals import ExtractionTotals
from medflare.cli.output import JSON_OPTION, PARTLY_DONE, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.cli.extract_notes import NotesToMark
    from medflare.core.origin import Origin
    from medflare.data.records import Note
    from medflare.tasks.extraction.predictor import NotePrediction, Predictor

FOLDER = Path("extracted")
BATCH = 8
"""Notes of one batch; its BRAT files are on disk before the next one begins."""


@plain_errors
def extract(
    notes: list[Path] | None = typer.Argument(None, help="Text files in UTF-8, or folders of .txt files."),
    site_file: Path | None = typer.Option(
        None, "--site-file", "-f", help="In place of files: the notes of a site.yaml, in any of its formats."
    ),
    site: str | None = typer.Option(None, "--site", help="The site of a site.yaml that has several."),
    result: Path = typer.Option(..., "--result", "-r", help="A run's folder, or a result/adapter folder."),
    format_: str = typer.Option(
        "brat",
        "--format",
        help="brat (.txt and .ann), xmi (UIMA CAS, INCEpTION), jsonl (notes.jsonl) or fhir (preliminary "
        "Observations).",
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Folder of the files; default extracted, none with --show or --json."
    ),
    personalised: Path | None = typer.Option(
        None, "--personalised", "-p", help="A site's own adapter folder."
    ),
    backbone: Path | None = typer.Option(
        None,
        "--backbone",
        help="Folder of the base model; default that of the run, where it is on this machine.",
    ),
    precision: str = typer.Option("auto", "--precision", help="auto, fp32, bf16, int8 or nf4."),
    device: str = typer.Option("cpu", "--device", help="cpu or cuda."),
    show: bool = typer.Option(False, "--show", help="Print each note with what was found in colour."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace annotation that is already there."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Marks problems, treatments, tests and drugs in notes, with their modifiers. To check, not to rely on.

    A file that is no note costs no other one its annotation; exit code 7 says that some were left out. The
    notes of a site.yaml (CSV, FHIR, OMOP, BRAT ...) are marked by the model alone, whatever marks they have.

    [bold]Examples[/bold]: medflare extract notes/*.txt -r runs/20261120-fed_medlora --out annotated
    medflare extract letter.txt -r runs/20261120-fed_medlora --show
    medflare extract -f site.yaml -r runs/20261120-fed_medlora --format jsonl
    """
    from rich.console import Console

    from medflare.cli.extract_notes import notes_to_mark
    from medflare.cli.extract_view import print_note
    from medflare.core.errors import ConfigError
    from medflare.core.origin import MARKS
    from medflare.models.backbone import device_of
    from medflare.recipes.result_origin import adapter_folder, origin_of
    from medflare.tasks.extraction.annotation_files import FORMATS, SUFFIXES, files_of
    from medflare.tasks.extraction.result_folder import open_result
    from medflare.tasks.output_files import refuse_to_replace

    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: expected one of {', '.join(FORMATS)}.")
    if out is None and not (show or as_json):
        out = FOLDER
    if out is None and format_ != "brat":
        raise ConfigError(f"--format {format_}: is of files; name their folder with --out.")
    totals = ExtractionTotals()
    read = notes_to_mark(
        notes or [], site_file, site, totals, file_of_each=out is not None and format_ in SUFFIXES
    )
    totals.replaced = read.replaced
    if out is not None and not overwrite:
        names = [note.note_id for _, note in read.notes]
        refuse_to_replace(out, files_of(names, format_), "somebody's own annotation")
    opened = open_result(
        adapter_folder(result),
        personalised=personalised,
        backbone=backbone or read.backbone,
        precision=precision,
        device=device_of(device),
    )
    annotated, origin = [], origin_of(result)
    if not as_json:
        typer.secho(f"{MARKS} {origin.words}\n", fg=typer.colors.YELLOW)
    for source, note, prediction in _predictions(opened, read.notes):
        totals.add(note, prediction)
        if out is not None:
            totals.files += _write_note(source, note, out, format_)
        if show and not as_json:
            print_note(Console(), note)
        annotated.append(note)
    if out is not None:
        totals.files += _write_all(annotated, out, format_, origin, read)
    _report(totals, annotated, out, as_json, origin)
    if totals.left_out:
        listed = ", ".join(item["file"] for item in totals.left_out)
        typer.secho(f"left out: {listed}. The others are done.", fg=typer.colors.YELLOW, err=True)
        raise typer.Exit(PARTLY_DONE)


def _predictions(
    predictor: Predictor, read: Sequence[tuple[Path | None, Note]]
) -> Iterator[tuple[Path | None, Note, NotePrediction]]:
    """Yield each note with its annotation, batch by batch; show progress on a terminal."""
    from rich.console import Console
    from rich.progress import track

    from medflare.tasks.extraction.annotation_files import annotate

    parts = [read[start : start + BATCH] for start in range(0, len(read), BATCH)]
    bar = Console(stderr=True)
    for part in track(parts, "reading notes", console=bar, transient=True, disable=not sys.stderr.isatty()):
        annotated = annotate(predictor, [note for _, note in part])
        for (source, _), (note, prediction) in zip(part, annotated, strict=True):
            yield source, note, prediction


def _write_note(source: Path | None, note: Note, folder: Path, format_: str) -> list[Path]:
    """Write one note in a format that has a file of each; return its files."""
    from medflare.tasks.extraction.annotation_files import write_brat, write_cas

    if format_ == "brat":
        return write_brat(folder, note, source)
    return write_cas(folder, note) if format_ == "xmi" else []


def _write_all(
    notes: Sequence[Note], folder: Path, format_: str, origin: Origin, read: NotesToMark
) -> list[Path]:
    """Write the notes in a format that has one file of all, and what the files are."""
    from medflare.tasks.extraction.annotation_files import write_about, write_lines, write_observations

    write_about(folder, origin, read.ids, read.replaced)
    if format_ == "jsonl":
        return write_lines(folder, notes)
    return write_observations(folder, notes, origin) if format_ == "fhir" else []


def _report(
    totals: ExtractionTotals, notes: Sequence[Note], out: Path | None, as_json: bool, origin: Origin
) -> None:
    """Print the totals; as JSON with the notes' annotation where no file holds it."""
    from rich.console import Console

    from medflare.cli.extract_view import print_totals
    from medflare.core.origin import MARKS
    from medflare.data.notes.note_writers import notes_row

    if not as_json:
        print_totals(Console(), totals)
        if out is not None:
            typer.echo(f"{len(totals.files)} file(s) in {out}")
        return
    facts = {"notice": MARKS, "model": origin.as_json()} | totals.as_json()
    if out is None:
        facts["documents"] = [notes_row(note) for note in notes]
    print_json(facts)
