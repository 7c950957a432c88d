# SPDX-License-Identifier: Apache-2.0
"""Choice of a new split where a source's own has nothing to train on."""

from __future__ import annotations

from dataclasses import replace

from medflare.data.detection.guess import CohortGuess
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Note, Question, Study, Summary
from medflare.data.splits import split_name


def with_split(guess: CohortGuess, source: SourceRecords) -> CohortGuess:
    """Return the guess with `split.ignore_source` where the source validates and trains on nothing, as a
    published part of a corpus does; else unchanged. A source of tests alone may be meant so.

    Args:
        source: what is read by the guess.
    """
    records: list[Study | Note | Question | Summary]
    records = [*source.studies, *source.notes, *source.questions, *source.summaries]
    splits = {split_name(record.split) for record in records if record.split}
    if not source.has_split or "train" in splits or "val" not in splits:
        return guess
    reason = "the source has no training records; patients are split 80/10/10 instead"
    return replace(
        guess,
        settings=guess.settings | {"split": {"ignore_source": True}},
        reasons=guess.reasons | {"split.ignore_source": reason},
    )
