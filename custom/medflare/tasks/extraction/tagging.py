# SPDX-License-Identifier: Apache-2.0
"""Questions about notes answered by a tagger: B, I, O tags instead of marked-up text.

The questions are the language model's own (examples.py), so both are scored alike. One layer of tags cannot
nest: of overlapping modifiers of one head the outermost is learned, and the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from medflare.data.notes.word_offsets import locate_words
from medflare.models.tagger import OUTSIDE, TYPES, Tagged, Tagger
from medflare.tasks.extraction.examples import Example
from medflare.tasks.extraction.markup import Mark, ParsedOutput, keep_outermost
from medflare.tasks.extraction.predictor import Predictor

AROUND = 4
"""Tokens of an input besides its text: begin, end, and the two marks of a head."""


def tags_of(marks: Sequence[Mark], count: int, types: Sequence[str]) -> list[int]:
    """Return the tags of `count` words; marks must not overlap."""
    tags = [OUTSIDE] * count
    for mark in marks:
        first, last = mark.words
        begin = 2 * types.index(mark.label) + 1
        tags[first:last] = [begin] + [begin + 1] * (last - first - 1)
    return tags


def marks_of(tags: Sequence[int], types: Sequence[str]) -> list[Mark]:
    """Return the spans of tags; a tag that continues none of its type begins a span, as in CoNLL's scorer."""
    marks: list[Mark] = []
    for place, tag in enumerate(tags):
        label = types[(tag - 1) // 2] if tag != OUTSIDE else None
        before = marks[-1] if marks and marks[-1].words[1] == place else None
        if label is not None and tag % 2 == 0 and before is not None and before.label == label:
            marks[-1] = Mark(label, (before.words[0], place + 1))
        elif label is not None:
            marks.append(Mark(label, (place, place + 1)))
    return marks


class TaggingExtractor(Predictor):
    """A tagger, and how notes are cut.

    Args:
        sentences: of a window; longest: most tokens of an input, at most what the encoder has places for.
        batch: questions asked at once.
    """

    def __init__(self, tagger: Tagger, sentences: int = 1, longest: int = 512, batch: int = 64) -> None:
        super().__init__(sentences, min(longest, tagger.text.longest) - AROUND)
        self.tagger, self.batch = tagger, batch

    def count_tokens(self, text: str) -> int:
        return sum(map(len, self.tagger.pieces([locate_words(text).words])[0]))

    def predict(self, examples: Sequence[Example]) -> list[ParsedOutput]:
        """Return one parsed output for each example. Tags can always be parsed, so there are no faults."""
        predicted = self.tagger.tags(self._tagged(examples, [()] * len(examples)), self.batch)
        pairs = zip(examples, predicted, strict=True)
        return [ParsedOutput(marks_of(tags, TYPES[example.task])) for example, tags in pairs]

    def questions(self, examples: Sequence[Example], losses: Counter[str] | None = None) -> list[Tagged]:
        """Questions with their gold tags; `losses` counts the marks that one layer cannot hold."""
        gold = []
        for example in examples:
            flat = keep_outermost(example.answer)
            if losses is not None:
                losses["overlapping modifier"] += len(example.answer) - len(flat)
            gold.append(tags_of(flat, len(example.source.words), TYPES[example.task]))
        return self._tagged(examples, gold)

    def _tagged(self, examples: Sequence[Example], tags: Sequence[Sequence[int]]) -> list[Tagged]:
        """Return each text is cut into pieces once, however many heads it is asked about."""
        texts = list({example.source.words: None for example in examples})
        pieces = dict(zip(texts, self.tagger.pieces(texts), strict=True))
        return [
            self.tagger.tagged(
                example.task,
                example.types,
                pieces[example.source.words],
                None if example.head is None else (example.head.label, example.head.words),
                word_tags,
            )
            for example, word_tags in zip(examples, tags, strict=True)
        ]
