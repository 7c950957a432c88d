# SPDX-License-Identifier: Apache-2.0
"""Held-out notes that repeat much of a training note: copied forward, or written from one template.

Who tests on such notes measures memory. Notes of the same words are in one split anyway (`grouped_split`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

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
    numbers: dict[str, int] = {}
    trained = [note for note in notes if note.split == "train"]
    others = [note for note in notes if note.split != "train"]
    sequences = [_sequences(note.text, numbers) for note in others]
    known = np.unique(np.concatenate([*sequences, np.empty(0, np.uint64)]))
    if not trained or not len(known):
        return []
    # Of training notes only what held-out ones have too is kept: all of a large cohort would fill gigabytes.
    of_others = _places(sequences, known)
    of_trained = _places((_sequences(note.text, numbers) for note in trained), known)
    rare = np.asarray(of_trained.sum(0)).ravel() <= COMMON
    shared = (of_others[:, rare] @ of_trained[:, rare].T).tocsr()
    copies = []
    for row, note in enumerate(others):
        counts, total = shared.getrow(row), len(sequences[row])
        if counts.nnz and counts.data.max() >= SHARE * total:
            most = int(counts.data.argmax())
            source = trained[int(counts.indices[most])]
            copies.append(NearCopy(note.note_id, source.note_id, float(counts.data[most] / total)))
    return sorted(copies, key=lambda copy: (-copy.share, copy.held_out))


def _places(sequences: Iterable[np.ndarray], known: np.ndarray) -> csr_matrix:
    """Return (notes, known sequences), 1 where a note has one.

    Args:
        known: sorted.
    """
    columns, ends = list[np.ndarray](), [0]
    for found in sequences:
        place = np.minimum(np.searchsorted(known, found), len(known) - 1)
        columns.append(place[known[place] == found].astype(np.int32))
        ends.append(ends[-1] + len(columns[-1]))
    places = np.concatenate([*columns, np.empty(0, np.int32)])
    return csr_matrix((np.ones(len(places), np.int32), places, ends), shape=(len(columns), len(known)))


def _sequences(text: str, numbers: dict[str, int]) -> np.ndarray:
    """Return a number for each distinct sequence of WORDS words of a text, in uint64.

    Args:
        numbers: word -> its number; new words are added.
    """
    words = np.array([numbers.setdefault(word, len(numbers) + 1) for word in text.lower().split()], np.uint64)
    if len(words) < WORDS:
        return np.empty(0, np.uint64)
    # A polynomial modulo 2^64: two sequences of one number are as likely as two equal random ones.
    factors = np.array([pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(WORDS)], np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(words * np.uint64(0xBF58476D1CE4E5B9), WORDS)
    return np.unique((windows * factors).sum(1, dtype=np.uint64))
