# SPDX-License-Identifier: Apache-2.0
"""`medflare extract`: what a run's model finds in notes, as annotation files or on the screen."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.data.records import Note
    from medflare.tasks.extraction.predictor import NotePrediction, Predictor

FORMATS = ("brat", "jsonl")
FOLDER = Path("extracted")
AT_ONCE = 8
"""Notes asked about together; what is done is on disk before the next ones begin (BRAT)."""


@dataclass(slots=True)
class Totals:
    """What one call did."""

    notes: int = 0
    entities: Counter[str] = field(default_factory=Counter)
    modifiers: Counter[str] = field(default_factory=Counter)
    links: int = 0
    outputs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    left_out: list[dict[str, str]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def add(self, note: Note, answers: NotePrediction) -> None:
        """Counts a note's findings."""
        from medflare.core.inventory import ENTITY_TYPES

        self.notes += 1
        for entity in note.entities:
            (self.entities if entity.label in ENTITY_TYPES else self.modifiers)[entity.label] += 1
        self.links += len(note.relations)
        self.outputs += answers.outputs
        self.faults.update(+answers.faults)


@plain_errors
def extract(
    notes: list[Path] = typer.Argument(..., help="Text files in UTF-8, or folders of .txt files."),
    result: Path = typer.Option(..., "--result", "-r", help="A run's folder, or a result/adapter folder."),
    format_: str = typer.Option("brat", "--format", help="brat (.txt and .ann), or jsonl (notes.jsonl)."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Folder of the files; default extracted, none with --show or --json."
    ),
    personalised: Path | None = typer.Option(
        None, "--personalised", "-p", help="A site's own adapter folder."
    ),
    backbone: Path | None = typer.Option(
        None, "--backbone", help="Folder of the base model; default the embedded one."
    ),
    precision: str = typer.Option("auto", "--precision", help="auto, fp32, bf16, int8 or nf4."),
    device: str = typer.Option("cpu", "--device", help="cpu or cuda."),
    show: bool = typer.Option(False, "--show", help="Print each note with what was found in colour."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace annotation that is already there."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Marks problems, treatments, tests and drugs in notes, with their modifiers. To check, not to rely on.

    [bold]Examples[/bold]: medflare extract notes/*.txt -r runs/20261120-fed_medlora --out annotated
    medflare extract letter.txt -r runs/20261120-fed_medlora --show
    """
    from medflare.cli.reports import adapter_folder
    from medflare.core.errors import ConfigError
    from medflare.models.backbone import device_of
    from medflare.tasks.extraction.annotation_files import check_free, write_lines
    from medflare.tasks.extraction.result_folder import open_result

    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: expected {' or '.join(FORMATS)}.")
    if out is None and not (show or as_json):
        out = FOLDER
    totals = Totals()
    read = _read(notes, totals)
    if out is not None and not overwrite:
        check_free(out, [note.note_id for _, note in read], format_)
    opened = open_result(
        adapter_folder(result),
        personalised=personalised,
        backbone=backbone,
        precision=precision,
        device=device_of(device),
    )
    found = []
    for source, note, answers in _asked(opened, read):
        totals.add(note, answers)
        _deliver(source, note, out if format_ == "brat" else None, show and not as_json, totals)
        found.append(note)
    if out is not None and format_ == "jsonl":
        totals.files += write_lines(out, found)
    _tell(totals, found, out, as_json)


def _read(paths: Sequence[Path], totals: Totals) -> list[tuple[Path, Note]]:
    """The notes that can be read; a line on standard error for each other. DataError when none can."""
    from medflare.core.errors import DataError
    from medflare.data.readers.annotated import NoteError
    from medflare.tasks.extraction.annotation_files import names_of, read_note

    files = [file for path in paths for file in (_texts(path) if path.is_dir() else [path])]
    read = []
    for path, name in names_of(files).items():
        try:
            read.append((path, read_note(path, name)))
        except NoteError as error:
            totals.left_out.append({"file": str(path), "reason": error.reason, "detail": str(error)})
            typer.secho(f"left out: {path}: {error.reason}. {error}.", fg=typer.colors.YELLOW, err=True)
    if not read:
        raise DataError(
            f"none of {len(files)} file(s) could be read: {', '.join(map(str, paths))}. Expected clinical "
            "notes as plain text in UTF-8."
        )
    return read


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.txt") if path.is_file() and path.name[0] != ".")


def _asked(
    predictor: Predictor, read: Sequence[tuple[Path, Note]]
) -> Iterator[tuple[Path, Note, NotePrediction]]:
    """Each note with what was found, some at once; progress on a terminal."""
    from rich.console import Console
    from rich.progress import track

    from medflare.tasks.extraction.annotation_files import annotate

    parts = [read[start : start + AT_ONCE] for start in range(0, len(read), AT_ONCE)]
    bar = Console(stderr=True)
    for part in track(parts, "reading notes", console=bar, transient=True, disable=not sys.stderr.isatty()):
        answered = annotate(predictor, [note for _, note in part])
        for (source, _), (note, answers) in zip(part, answered, strict=True):
            yield source, note, answers


def _deliver(source: Path, note: Note, folder: Path | None, show: bool, totals: Totals) -> None:
    """One note to its BRAT files and to the screen, where wanted."""
    from rich.console import Console

    from medflare.cli.extract_view import print_note
    from medflare.tasks.extraction.annotation_files import write_brat

    if folder is not None:
        totals.files += write_brat(folder, note, source)
    if show:
        print_note(Console(), note)


def _tell(totals: Totals, notes: Sequence[Note], out: Path | None, as_json: bool) -> None:
    """The summary; as JSON with the notes' annotation where no file holds it."""
    from rich.console import Console

    from medflare.cli.extract_view import print_totals
    from medflare.data.notes.note_writers import notes_row

    if not as_json:
        print_totals(Console(), totals)
        if out is not None:
            typer.echo(f"{len(totals.files)} file(s) in {out}")
        return
    facts: dict[str, Any] = {
        "notes": totals.notes,
        "left_out": totals.left_out,
        "entities": dict(totals.entities.most_common()),
        "modifiers": dict(totals.modifiers.most_common()),
        "links": totals.links,
        "outputs": totals.outputs,
        "faults": dict(totals.faults.most_common()),
        "files": [str(path) for path in totals.files],
    }
    if out is None:
        facts["documents"] = [notes_row(note) for note in notes]
    print_json(facts)
