# SPDX-License-Identifier: Apache-2.0
"""Notes with their extracted entities, for a clinician at a terminal."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.data.readers.annotated import surface_text
from medflare.data.records import Entity, Note
from medflare.evaluation.extraction_predictions import PARSE_FAILURE

if TYPE_CHECKING:
    from medflare.cli.extract_totals import ExtractionTotals

COLOURS = {
    "problem": "bold white on red",
    "treatment": "bold black on green",
    "test": "bold black on cyan",
    "drug": "bold white on magenta",
}
MODIFIER = "underline"


def print_note(console: Console, note: Note) -> None:
    """Print the text, entities in colour and modifiers underlined; below it each entity's modifiers."""
    console.rule(Text(note.note_id), align="left")
    console.print(coloured(note), soft_wrap=False)
    console.print(_legend())
    heads = [entity for entity in note.entities if entity.label in ENTITY_TYPES]
    if not heads:
        console.print("nothing found", style="dim")
        return
    table = Table("type", "entity", "modifiers", show_edge=False, pad_edge=False)
    for head in heads:
        table.add_row(Text(head.label, COLOURS[head.label]), _words(note, head), modifiers(note, head))
    console.print(table)


def coloured(note: Note) -> Text:
    """Return the text with its annotation as styles; same length, so that offsets hold.

    Control characters become spaces: a note must not command the terminal.
    """
    text = Text(_visible(note.text))
    for entity in sorted(note.entities, key=lambda e: e.label in MODIFIER_TYPES):
        for start, end in entity.spans:
            text.stylize(COLOURS.get(entity.label, MODIFIER), start, end)
    return text


def modifiers(note: Note, head: Entity) -> Text:
    """Return the modifiers of an entity: `negation: no; bodyloc: left wrist`."""
    entities = {entity.entity_id: entity for entity in note.entities}
    tails = [entities[r.tail] for r in note.relations if r.head == head.entity_id]
    return Text("; ").join(
        Text.assemble((f"{tail.label}: ", "dim"), _words(note, tail).plain) for tail in tails
    )


def _words(note: Note, entity: Entity) -> Text:
    return Text(_visible(surface_text(note.text, entity.spans)))


def _visible(text: str) -> str:
    kept = ("\n", "\t")
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf") and c not in kept else c for c in text)


def _legend() -> Text:
    marks = [Text(f" {name} ", style) for name, style in COLOURS.items()]
    return Text(" ").join([*marks, Text("modifier", MODIFIER)])


def print_totals(console: Console, totals: ExtractionTotals) -> None:
    """Print how many of each type were extracted, unreadable outputs, and files that were left out."""
    table = Table("found", "count", title=f"{totals.notes} note(s)", title_justify="left")
    for name in ENTITY_TYPES:
        table.add_row(Text(name, COLOURS[name]), str(totals.entities[name]))
    for name in MODIFIER_TYPES:
        if totals.modifiers[name]:
            table.add_row(Text(f"  {name}", "dim"), str(totals.modifiers[name]))
    table.add_row("links", str(totals.links))
    console.print(table)
    failures = totals.faults[PARSE_FAILURE]
    style = "yellow" if failures else "dim"
    console.print(f"{failures} of {totals.outputs} answers could not be read as they were meant", style=style)
    if totals.replaced:
        console.print(
            f"{sum(totals.replaced.values())} identifiers of the notes are surrogates in what is written "
            "(deidentify: replace): the marks' places count in these texts, not in the originals.",
            style="yellow",
        )
    elif totals.identifiers:
        listed = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in totals.identifiers.items())
        console.print(f"The notes hold identifiers ({listed}): so do the files written.", style="yellow")
    if totals.left_out:
        console.print(f"{len(totals.left_out)} file(s) left out", style="yellow")
