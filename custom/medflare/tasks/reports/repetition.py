# SPDX-License-Identifier: Apache-2.0
"""Detection of generated text that repeats itself: a phrase many times in a row, or few different words."""

from __future__ import annotations

import re

LONGEST_PHRASE = 6
"""Words of the longest phrase that is looked for."""
TIMES = 4
"""Times in a row from which a phrase is a fault: "clear, clear" is style, four times is none."""
LEAST_WORDS, LEAST_DIFFERENT = 30, 0.3
"""A text of so many words of which fewer than this share differ goes in circles too."""


_MARKS = re.compile(r"([^\w\s])(?:\s*\1){9,}")
"""The same mark ten times in a row: no word, and no dots that a writer sets."""


def repetition(text: str) -> str | None:
    """Return what is repeated, in words for a reader, or None."""
    if marks := _MARKS.search(text):
        return f"'{marks[1]}' is repeated 10 times or more"
    words = text.lower().split()
    for size in range(1, LONGEST_PHRASE + 1):
        equal = 0
        for place in range(size, len(words)):
            # A phrase of `size` words stands again where each word equals the one `size` before it.
            equal = equal + 1 if words[place] == words[place - size] else 0
            if equal >= size * (TIMES - 1):
                phrase = " ".join(words[place - size + 1 : place + 1])
                return f"'{phrase}' is repeated {TIMES} times or more"
    different = len(set(words)) / max(len(words), 1)
    if len(words) >= LEAST_WORDS and different < LEAST_DIFFERENT:
        return f"{len(set(words))} different words in {len(words)}"
    return None
