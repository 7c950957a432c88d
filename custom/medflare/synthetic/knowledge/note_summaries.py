# SPDX-License-Identifier: Apache-2.0
"""Synthetic clinical notes and what a colleague must know of them: problems, what may be, and drugs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from medflare.data.records import Entity, Note
from medflare.synthetic.knowledge.obo import TermPairs
from medflare.synthetic.notes.generate import generate_notes
from medflare.synthetic.notes.houses import SummaryFrames
from medflare.synthetic.notes.lexicon import lexicon
from medflare.synthetic.notes.profiles import NOTE_STYLES, NotesProfile

MOST = 6
"""Problems, possible ones, and drugs that a summary names of each at most."""
SPECIALTIES = tuple(name for name in lexicon().specialties if name != "general")
POPULATION = 8_000_000  # seeds far from those of hospitals with annotated notes
_OWNER = re.compile(r"^(?:an?|the|his|her|their|my|this|some|any)\s+", re.IGNORECASE)
_MARKS = re.compile(r"[_^*+]")
_NOT_THE_PATIENTS = frozenset({"negation", "subject", "condition"})


def style_of(site: int) -> str:
    """Return the style in which a hospital documents."""
    return list(NOTE_STYLES)[site % len(NOTE_STYLES)]


def write_note_pair(number: int, specialty: str, site: int, seed: int) -> tuple[str, str]:
    """Return the note of one patient of a specialty in a hospital's style, and its summary."""
    profile = NotesProfile(
        name="note",
        style=style_of(site),
        emphasis={specialty: 1.0},
        abbreviates=0.1 + 0.1 * (site % 8),
        seed=POPULATION + 100_000 * seed + number,
    )
    (note,) = generate_notes(profile, 1)
    return note.text, summarise_note(note, profile.house.summary)


def summarise_note(note: Note, frames: SummaryFrames) -> str:
    """Return the patient's problems, possible problems and drugs, in the order of the note, none twice.

    What is denied, conditional, or somebody else's is left out; a drug that was stopped too.
    """
    labels = {entity.entity_id: entity.label for entity in note.entities}
    modifiers_of: dict[str, set[str]] = {}
    for relation in note.relations:
        modifiers_of.setdefault(relation.head, set()).add(labels[relation.tail])
    sure, possible, drugs = list[str](), list[str](), list[str]()
    for entity in sorted(note.entities, key=lambda entity: entity.spans):
        modifiers = modifiers_of.get(entity.entity_id, set())
        if entity.label not in ("problem", "drug") or modifiers & _NOT_THE_PATIENTS:
            continue
        listed = drugs if entity.label == "drug" else possible if "uncertain" in modifiers else sure
        listed.append(_named(note, entity))
    possible = [name for name in possible if name.lower() not in {other.lower() for other in sure}]
    parts = [(frames.problems, sure), (frames.possible, possible), (frames.drugs, drugs)]
    sentences = [frame.format(", ".join(_distinct(names)[:MOST])) for frame, names in parts if names]
    return " ".join(sentences) or frames.nothing


def _named(note: Note, entity: Entity) -> str:
    """Return an entity's words without article or owner; a problem begins small unless an abbreviation."""
    words = " ".join(" ".join(note.text[start:end] for start, end in entity.spans).split())
    words = _OWNER.sub("", words)
    small = entity.label == "problem" and words[1:2].islower()
    return words[:1].lower() + words[1:] if small else words


def _distinct(names: list[str]) -> list[str]:
    return list({name.lower(): name for name in reversed(names)}.values())[::-1]


def note_terms() -> TermPairs:
    """Return the diseases and drugs of the notes' lexicon with their short names, no name twice."""
    terms: dict[str, tuple[str, tuple[str, ...]]] = {}
    taken: set[str] = set()
    for category, names in _entries():
        free = tuple(name for name in names if name.lower() not in taken)
        if free and names[0].lower() not in taken:
            terms[names[0]] = (category, free)
            taken |= {name.lower() for name in free}
    return list(terms.values())


def _entries() -> Iterator[tuple[str, tuple[str, ...]]]:
    for category, table in (("disease", lexicon().diseases), ("drug", lexicon().drugs)):
        for entries in table.values():
            for entry in entries:
                names = entry.split(";")[0].split("=")
                yield category, tuple(" ".join(_MARKS.sub("", name).split()) for name in names)
