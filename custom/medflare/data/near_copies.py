# SPDX-License-Identifier: Apache-2.0
"""Held-out notes that repeat much of a training note: copied forward, or written from one template.

A test on such notes measures memory. Notes of the same words are in one split anyway (`grouped_split`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medflare.data.records import Note

WORDS = 8
"""Length of the sequences of words that are compared; phrases of every note are shorter."""
SHARE = 0.3
"""Of a held-out note's sequences; from so many on it is named."""
COMMON = 50
"""A sequence of more training notes than these is of a form that all share."""


@dataclass(frozen=True, slots=True)
class NearCopy:
    """A held-out note and the training note that it repeats most of.

    Attributes:
        share: of the held-out note's sequences of WORDS words that stand in the training note.
    """

    held_out: str
    trained: str
    share: float


def near_copies(notes: Sequence[Note]) -> list[NearCopy]:
    """Return the held-out notes of which a training note holds SHARE or more, the largest share first."""
    from sklearn.feature_extraction.text import CountVectorizer  # takes seconds to import

    trained = [note for note in notes if note.split == "train"]
    others = [note for note in notes if note.split != "train" and len(note.text.split()) >= WORDS]
    if not trained or not others:
        return []
    # Fitted on held-out notes alone: all sequences of a large cohort would fill gigabytes.
    sequences = CountVectorizer(ngram_range=(WORDS, WORDS), token_pattern=r"\S+", binary=True)
    of_others = sequences.fit_transform(note.text for note in others)
    of_trained = sequences.transform(note.text for note in trained)
    totals = np.asarray(of_others.sum(1)).ravel()
    rare = np.asarray(of_trained.sum(0)).ravel() <= COMMON
    shared = (of_others[:, rare] @ of_trained[:, rare].T).tocsr()
    copies = []
    for row, (note, total) in enumerate(zip(others, totals, strict=True)):
        counts = shared.getrow(row)
        if counts.nnz and counts.data.max() >= SHARE * total:
            most = int(counts.data.argmax())
            source = trained[int(counts.indices[most])]
            copies.append(NearCopy(note.note_id, source.note_id, float(counts.data[most] / total)))
    return sorted(copies, key=lambda copy: (-copy.share, copy.held_out))
