# SPDX-License-Identifier: Apache-2.0
"""Synthetic clinical notes with gold entities and relations, in the documentation styles of five houses."""

from medflare.synthetic.notes.corrupt import corrupt_labels
from medflare.synthetic.notes.files import write_notes_demo, write_notes_hospital
from medflare.synthetic.notes.generate import generate_notes
from medflare.synthetic.notes.profiles import (
    NOTE_HOSPITALS,
    NOTE_STYLES,
    UNSEEN_NOTES,
    NotesProfile,
    pretraining_note_hospitals,
)

__all__ = [
    "NOTE_HOSPITALS",
    "NOTE_STYLES",
    "UNSEEN_NOTES",
    "NotesProfile",
    "corrupt_labels",
    "generate_notes",
    "pretraining_note_hospitals",
    "write_notes_demo",
    "write_notes_hospital",
]
