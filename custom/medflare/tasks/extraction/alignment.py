# SPDX-License-Identifier: Apache-2.0
"""Aligns a model's output words to the source's words: longest common subsequence of normalised words.

Fed-MedLoRA's released code compares words by their sets of characters, so that "10" is "01" and "left" is
"felt", and credits one prediction to every later occurrence. Here each output word is aligned to at most one
source word, in order.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

HIDDEN = dict.fromkeys(map(ord, "\u00ad\u200c\u200d"))


def normalise(word: str) -> str:
    """Return a word case-folded, in Unicode's compatibility form and without joiners, nothing else."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word.translate(HIDDEN)).casefold())


def align(source: Sequence[str], output: Sequence[str]) -> list[int | None]:
    """Return, for each word of `output`, its position in `source`, or None; positions strictly increase.

    Of several longest alignments the one with the earliest source words is taken, so that an output that was
    cut short stays where it began.
    """
    left, right = [normalise(w) for w in source], [normalise(w) for w in output]
    positions: list[int | None] = [None] * len(right)
    head = 0
    while head < min(len(left), len(right)) and left[head] == right[head]:
        positions[head] = head
        head += 1
    for row, column in _subsequence(left[head:], right[head:]):
        positions[head + column] = head + row
    return positions


def _subsequence(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of positions of a longest common subsequence; table of len(left) x len(right) int32."""
    if not left or not right:
        return []
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*left, *right]))}
    rows = np.array([numbers[word] for word in left])
    columns = np.array([numbers[word] for word in right])
    # longest[i, j]: length of the longest common subsequence of left[i:] and right[j:]
    longest = np.zeros((len(left) + 1, len(right) + 1), dtype=np.int32)
    for i in range(len(left) - 1, -1, -1):
        # a match extends longest[i+1, j+1]; the running maximum from the right skips a word of `right`
        best = np.where(rows[i] == columns, longest[i + 1, 1:] + 1, longest[i + 1, :-1])
        longest[i, :-1] = np.maximum.accumulate(best[::-1])[::-1]
    pairs, i, j = [], 0, 0
    while i < len(left) and j < len(right) and longest[i, j] > 0:
        if rows[i] == columns[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i, j + 1] == longest[i, j]:
            j += 1
        else:
            i += 1
    return pairs
