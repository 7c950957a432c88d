# SPDX-License-Identifier: Apache-2.0
"""D_v at a site: the notes by which it weighs its own update, alike at all sites and never learnt from.

algorithms.md 4.4, pitfall 8, and ML-15: disjoint from what is trained and tested on, by document; which notes
they are is told by a digest, so that the server can compare sites without seeing a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from medflare.cohort.records import Note
from medflare.cohort.site import Cohort, SiteConfig, load_cohort
from medflare.cohort.words import source_of
from medflare.errors import DataError

SHOWN = 8
"""Note ids that an error lists."""


def load_shared_notes(site: SiteConfig, own: Cohort) -> Cohort | None:
    """The notes under `validation` in site.yaml, all of them whatever their split; None without that entry.

    Raises ConfigError where one of them is also in the site's training or test split.
    """
    if site.validation is None:
        return None
    shared = load_cohort(site.model_copy(update={"cohort": (site.validation,)}), f"{site.name}, validation")
    check_disjoint(site.name, own.notes, shared.notes)
    return shared


def check_disjoint(site: str, own: Iterable[Note], shared: Iterable[Note]) -> None:
    """DataError, whose text stays at the site, that names the notes of `shared` that it trains or tests on;
    spacing, case and how words and punctuation are set apart do not count."""
    known = {_plain(note.text): note for note in own if note.split != "val"}
    both = [(note.note_id, known[_plain(note.text)]) for note in shared if _plain(note.text) in known]
    if not both:
        return
    listed = [f"'{name}' is '{other.note_id}' of the split {other.split}" for name, other in both[:SHOWN]]
    more = f"; and {len(both) - SHOWN} more" if len(both) > SHOWN else ""
    raise DataError(
        f"site '{site}': {len(both)} of the shared validation notes are among the site's own: "
        f"{'; '.join(listed)}{more}. A note that weighs updates must not be trained or tested on. Take these "
        "notes out of 'cohort', or name others under 'validation' in site.yaml, at every site."
    )


def _plain(text: str) -> str:
    return " ".join(source_of(text).words).casefold()


def digest(notes: Sequence[Note]) -> str:
    """SHA-256 of texts, annotation and what it covers; ids and the order of notes and marks do not count."""
    rows = sorted(hashlib.sha256(json.dumps(_facts(note)).encode()).hexdigest() for note in notes)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _facts(note: Note) -> list[Any]:
    """What of a note the loss on it depends on."""
    marks = {entity.entity_id: [entity.label, entity.spans] for entity in note.entities}
    links = [[link.label, marks[link.head], marks[link.tail]] for link in note.relations]
    return [note.text, sorted(note.tasks), sorted(marks.values()), sorted(links), note.annotated]
