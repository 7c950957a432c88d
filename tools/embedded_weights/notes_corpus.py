# SPDX-License-Identifier: Apache-2.0
"""Text the embedded notes decoder is pretrained on, and the exercises it does with it.

Sentences of synthetic notes from hospitals no experiment uses, and of public sets (MTSamples CC0; MACCROBAT
and Chia CC BY 4.0; PHEE MIT; training parts only, text without annotation). Exercises: write on (a language
model), copy, copy without the marks, and put marks of random types around phrases that the prompt lists.

At the end a short instruction tuning among these: the questions of Fed-MedLoRA about notes of the same other
hospitals, which know two thirds of the lexicon. So the model knows what is asked, as the instruction-tuned
models of the paper do, and still has a hospital's words and habits to learn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from medflare.core.inventory import TYPES
from medflare.data.notes.sentences import sentences
from medflare.data.notes.windows import split_note
from medflare.data.notes.word_offsets import locate_words
from medflare.synthetic.notes import generate_notes, pretraining_note_hospitals
from medflare.tasks.extraction.examples import ner_example, re_examples
from medflare.tasks.extraction.prompts import wording

MARK = "<mark>"
CONTROL = ("<pad>", "<s>", "</s>", "<unk>", "<ner>", "<re>", MARK, "<out>")
CLOSE = "</span>"
OPENS = tuple(f'<span class="{name}">' for name in TYPES)
WORDING = {"extraction": {"ner": "<ner>{text}<out>", "re": "<re>{text}<out>"}}
LONGEST = 72
"""Tokens of a text in an exercise."""


def public_sentences(corpora: Path | None, notes: Path | None) -> list[str]:
    """Sentences of `<corpora>/{maccrobat,chia,phee}/train.jsonl` and of a JSONL of CC0 notes."""
    files = [corpora / site / "train.jsonl" for site in ("maccrobat", "chia", "phee")] if corpora else []
    texts = []
    for file in [*files, *([notes] if notes else [])]:
        texts += [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    return [shown for text in texts for shown in _shown(text)]


def synthetic_sentences(hospitals: int, notes: int) -> list[str]:
    """Sentences of notes of pretraining hospitals."""
    found: list[str] = []
    for profile in islice(pretraining_note_hospitals(hospitals), hospitals):
        for note in generate_notes(profile, notes):
            found += _shown(note.text)
    return found


def _shown(text: str) -> Iterator[str]:
    """A text's sentences as prompts show them."""
    for start, end in sentences(text):
        words = locate_words(text[start:end]).words
        if 2 <= len(words) <= LONGEST:
            yield " ".join(words)


def questions(hospitals: int, notes: int, skip: int = 0) -> list[tuple[str, str]]:
    """(prompt, answer) texts about notes of pretraining hospitals, from the `skip`-th hospital on."""
    words = wording(WORDING["extraction"])
    found = []
    for profile in islice(pretraining_note_hospitals(hospitals), skip, hospitals):
        for note in generate_notes(profile, notes):
            for window in split_note(note).windows:
                found += [
                    (words.prompt(e), words.answer(e)) for e in (ner_example(window), *re_examples(window))
                ]
    return found


@dataclass
class Exercises:
    """Draws exercises as (prompt, answer) token ids.

    share_lm, share_copy, share_noise: of plain text, of copies, of copies of random tokens; the rest marks.
    asked, share_asked: questions with their answers, and their share of all exercises.
    """

    tokenizer: Any
    texts: list[list[int]]
    rng: np.random.Generator
    share_lm: float = 0.25
    share_copy: float = 0.2
    share_noise: float = 0.1
    asked: list[tuple[list[int], list[int]]] = field(default_factory=list)
    share_asked: float = 0.0

    def __post_init__(self) -> None:
        one = self.tokenizer.convert_tokens_to_ids
        self.begin, self.end, self.out = one("<s>"), one("</s>"), one("<out>")
        self.ner, self.re, self.mark = one("<ner>"), one("<re>"), one(MARK)
        self.opens, self.close = [one(name) for name in OPENS], one(CLOSE)
        self.first_word = len(CONTROL) + 256

    def draw(self) -> tuple[list[int], list[int]]:
        """One exercise."""
        if self.rng.random() < self.share_asked:
            return self.asked[self.rng.integers(len(self.asked))]
        kind = self.rng.random()
        if kind < self.share_lm:
            return [self.begin], [*self._text(), self.end]
        if kind < self.share_lm + self.share_noise:
            top = len(self.tokenizer) - len(OPENS) - 1
            text = [int(i) for i in self.rng.integers(self.first_word, top, size=self.rng.integers(5, 40))]
            return [self.begin, self.ner, *text, self.out], [*text, self.end]
        text = self._text()
        if kind < self.share_lm + self.share_noise + self.share_copy:
            return self._copy(text)
        return self._marking(text)

    def _text(self) -> list[int]:
        return self.texts[self.rng.integers(len(self.texts))]

    def _copy(self, text: list[int]) -> tuple[list[int], list[int]]:
        """With `<ner>` as it is, with `<re>` with one marked phrase, whose marks the copy leaves out."""
        if self.rng.random() < 0.5:
            return [self.begin, self.ner, *text, self.out], [*text, self.end]
        start = int(self.rng.integers(len(text)))
        stop = min(start + int(self.rng.integers(1, 6)), len(text))
        asked = [*text[:start], self._open(), *text[start:stop], self.close, *text[stop:]]
        return [self.begin, self.re, *asked, self.out], [*text, self.end]

    def _marking(self, text: list[int]) -> tuple[list[int], list[int]]:
        """The prompt lists marked phrases in any order, then the text; the answer is the text with marks."""
        count = min(int(self.rng.integers(1, 6)), (len(text) + 1) // 2)
        cuts = sorted(int(i) for i in self.rng.choice(len(text) + 1, size=2 * count, replace=False))
        asked, answer, place = [], list[int](), 0
        for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
            phrase = [self._open(), *text[start : min(stop, start + 8)], self.close]
            answer += text[place:start] + phrase
            place = min(stop, start + 8)
            asked.append(phrase)
        answer += text[place:]
        listed = [token for i in self.rng.permutation(len(asked)) for token in asked[i]]
        return [self.begin, self.mark, *listed, self.ner, *text, self.out], [*answer, self.end]

    def _open(self) -> int:
        return self.opens[self.rng.integers(len(self.opens))]
