# SPDX-License-Identifier: Apache-2.0
"""From annotated notes to token ids of questions and answers, with every loss counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from medflare.data.records import Note
from medflare.models.text_model import Sequenced
from medflare.tasks.extraction.examples import LostMarks
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.predictor import training_examples

LOST = ("nested or crossing entity", "crossing modifier", "entity without words")
"""Kinds of `extraction.examples.LostMarks` by which a mark is in no answer; others bend its borders."""


def rows_of(
    extractor: Extractor, notes: Iterable[Note], longest: int
) -> tuple[list[Sequenced], Counter[str]]:
    """Return one row for each question about `notes`, within their tasks, and a count of what no row holds.

    Args:
        longest: tokens of a question and its answer; what is longer is left out and counted.
    """
    losses = LostMarks()
    examples, lost = training_examples(extractor, notes, losses)
    words = extractor.wording
    rows = extractor.model.sequences([words.prompt(e) for e in examples], [words.answer(e) for e in examples])
    kept = [row for row in rows if len(row.ids) <= longest]
    lost["example too long"] = len(rows) - len(kept)
    lost.update({reason: losses.counts[reason] for reason in LOST})
    return kept, +lost
