# SPDX-License-Identifier: Apache-2.0
"""Synthetic notes on disk: BRAT pairs of .txt and .ann or one notes.jsonl, and the demo of four hospitals."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from medflare.data.notes.note_writers import notes_row, standoff
from medflare.data.records import Note
from medflare.synthetic.notes.corrupt import corrupt_labels
from medflare.synthetic.notes.generate import generate_notes
from medflare.synthetic.notes.profiles import NOTE_HOSPITALS, UNSEEN_NOTES, NotesProfile
from medflare.synthetic.policy import POLICY
from medflare.synthetic.site_files import HEAD

READERS = {"brat": "brat", "jsonl": "notes_jsonl"}
"""Format of `write_notes_hospital` -> name of the cohort format that reads it."""

VALIDATION, VALIDATION_SEED = 5, 999
"""Notes of D_v, and the seed they are drawn from, far from those of studies."""


def write_notes_hospital(
    profile: NotesProfile, folder: Path | str, count: int, format: str = "brat", corrupted: float = 0.0
) -> Path:
    """Write `count` notes into `folder` (made where it is missing) and return it.

    Args:
        format: "brat" (one .txt and .ann per note) or "jsonl" (notes.jsonl of the `notes_jsonl` reader).
        corrupted: share of wrong labels, see `corrupt_labels`.
    """
    if format not in READERS:
        raise ValueError(f"format is {format!r}; choose from {', '.join(READERS)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    notes: Iterable[Note] = generate_notes(profile, count)
    if corrupted:
        notes = corrupt_labels(notes, corrupted, profile.seed)
    if format == "brat":
        for note in notes:
            (folder / f"{note.note_id}.txt").write_text(note.text, encoding="utf-8", newline="\n")
            (folder / f"{note.note_id}.ann").write_text(standoff(note), encoding="utf-8", newline="\n")
    else:
        _write_rows(notes, folder)
    return folder


def _write_rows(notes: Iterable[Note], folder: Path) -> None:
    rows = "".join(f"{json.dumps(notes_row(note))}\n" for note in notes)
    (folder / "notes.jsonl").write_text(rows, encoding="utf-8", newline="\n")


def write_notes_demo(out: Path | str, notes: int = 0, seed: int = 0) -> dict[str, int]:
    """Write `<hospital>/` each and the `site.yaml` that a simulation reads; return hospital -> notes.

    Args:
        notes: of each hospital; 0 for each one's own number.
    """
    out = Path(out)
    hospitals = [hospital.with_seed(seed) for hospital in (*NOTE_HOSPITALS, UNSEEN_NOTES)]
    counts = {hospital.name: notes or hospital.notes for hospital in hospitals}
    write_validation_notes(out / "validation", seed)
    lines = [
        f"{HEAD}, keyed by site name; folders count from this file. `server` and",
        "# `validation`: the notes by which Fed-MedLoRA+ weighs updates, five, of no hospital's patients.",
        "sites:",
    ]
    shared = "{format: notes_jsonl, root: validation}"
    for number, hospital in enumerate(hospitals):
        format = "jsonl" if number else "brat"
        write_notes_hospital(hospital, out / hospital.name, counts[hospital.name], format)
        lines += [f"  {hospital.name}:", f"    cohort: {{format: {READERS[format]}, root: {hospital.name}}}"]
        lines += [f"    validation: {shared}", POLICY]
    lines += ["  server:", f"    cohort: {shared}"]
    (out / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return counts


def write_validation_notes(folder: Path, seed: int = 0, count: int = VALIDATION) -> Path:
    """Write D_v of Fed-MedLoRA+: notes in all three houses' styles, of patients that no site has (ML-8)."""
    houses = [hospital.with_seed(VALIDATION_SEED - seed) for hospital in NOTE_HOSPITALS]
    drawn = [list(generate_notes(house, count)) for house in houses]
    notes = [drawn[k % len(drawn)][k // len(drawn)] for k in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    _write_rows(notes, folder)
    return folder
