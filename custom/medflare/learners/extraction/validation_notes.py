# SPDX-License-Identifier: Apache-2.0
"""D_v at a site: the notes by which it weighs its own update, alike at all sites and never learnt from.

ML-15: disjoint from what is trained and tested on, by document. A digest identifies them, so that the server
can compare sites without seeing a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from medflare.core.site_description import SharedRecords
from medflare.data.cohort import Cohort
from medflare.data.notes.word_offsets import locate_words
from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.learners.text_task.validation_texts import Known, digest_of, load_shared_texts


def load_shared_notes(site: SiteConfig, cohort: Cohort) -> Cohort | None:
    """The notes under `validation` in site.yaml, all of them whatever their split; None without that entry.

    Raises DataError where one of them is also in the site's training or test split.
    """
    return load_shared_texts(site, cohort, lambda records: known(records.notes), "note")


def known(notes: Iterable[Note]) -> list[Known]:
    """Notes by their words: how words and punctuation are set apart does not count."""
    return [Known(note.note_id, note.split, " ".join(locate_words(note.text).words)) for note in notes]


def digest(notes: Sequence[Note]) -> SharedRecords | None:
    """`shared_texts.digest_of` of texts, annotation and what it covers; ids and the order of marks do not
    count."""
    return digest_of([_facts(note) for note in notes])


def _facts(note: Note) -> list[Any]:
    """What of a note the loss on it depends on."""
    marks = {entity.entity_id: [entity.label, entity.spans] for entity in note.entities}
    links = [[link.label, marks[link.head], marks[link.tail]] for link in note.relations]
    return [note.text, sorted(note.tasks), sorted(marks.values()), sorted(links), note.annotated]
