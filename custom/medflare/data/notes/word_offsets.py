# SPDX-License-Identifier: Apache-2.0
"""The words of a text with their offsets: what a prompt shows and what an output is aligned to.

Words are runs of letters, runs of digits (with decimals), or single other characters, so that "x3d" and
"500mg" can be marked in part and punctuation never sticks to a word. Combining marks belong to what they
stand on (a vowel sign of Devanagari, an accent typed apart); invisible characters are no words. A tag that
a note contains is shown as its words, "< span >", which no output format reads as its own.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

JOINING = "\u00ad\u200c\u200d" + "".join(
    chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me")
)
"""Combining marks, and the soft hyphen and joiners that may stand inside a word."""

INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
)
WORD = re.compile(rf"[^\W\d_]+(?:[{JOINING}]+[^\W\d_]*)*|\d+(?:[.,]\d+)*|[^\w\s{INVISIBLE}][{JOINING}]*|_")
WordRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WordOffsets:
    """words: as written; starts, ends: their offsets in the note (code points, end-exclusive)."""

    words: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return the words joined by single spaces, as prompts show them."""
        return " ".join(self.words)

    def cover(self, start: int, end: int) -> WordRange | None:
        """Return the smallest range of words that covers characters [start, end), None if it has no word."""
        first = bisect_right(self.ends, start)
        last = bisect_left(self.starts, end)
        return (first, last) if first < last else None

    def span(self, words: WordRange) -> WordRange:
        """Return the characters from the first to the last word of a non-empty range."""
        return self.starts[words[0]], self.ends[words[1] - 1]


def locate_words(text: str, offset: int = 0) -> WordOffsets:
    """Return the words of `text`, which begins at `offset` of its note."""
    matches = list(WORD.finditer(text))
    return WordOffsets(
        tuple(item.group() for item in matches),
        tuple(offset + item.start() for item in matches),
        tuple(offset + item.end() for item in matches),
    )
