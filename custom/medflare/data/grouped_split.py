# SPDX-License-Identifier: Apache-2.0
"""Questions and summaries that must stay together: of one patient, or repeating each other word for word.

A templated impression stands in hundreds of reports; tested on one that was trained on, any model looks good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from medflare.data.pool import chosen
from medflare.data.records import Question, Summary
from medflare.data.splits import Shares, assign, one_per_patient

Record = TypeVar("Record", Question, Summary)

LARGE, FEW = 0.1, 20
"""Share of all records, and records, above which those that hang together are trained on, all of them."""


def words_key(record: Question | Summary) -> str:
    """What two records have in common that repeat each other, whatever their case and white space."""
    if isinstance(record, Question):
        parts = (record.text, record.answer_text)
    else:
        parts = (record.source, record.target)
    return "\n".join(" ".join(part.lower().split()) for part in parts)


def repeated(records: Sequence[Question | Summary]) -> int:
    """How many records repeat one before them."""
    return len(records) - len({words_key(record) for record in records})


def owners(records: Sequence[Question | Summary]) -> list[str]:
    """For each record the name of those it hangs together with by words or patient, also through others.

    The name is the first of their texts in order of the alphabet: it depends on no id and no order of rows.
    """
    first: dict[str, str] = {}

    def root(key: str) -> str:
        while first[key] != key:
            first[key] = first[first[key]]
            key = first[key]
        return key

    for record in records:
        words = f"w{words_key(record)}"
        first.setdefault(words, words)
        patient = f"p{record.patient_id}" if isinstance(record, Summary) and record.patient_id else ""
        if not patient:
            continue
        if patient in first:
            low, high = sorted((root(patient), root(words)))
            first[high] = low
        else:
            first[patient] = root(words)
    return [root(f"w{words_key(record)}") for record in records]


def split_tied(records: Sequence[Record], has_split: bool, shares: Shares) -> tuple[list[Record], int]:
    """Records with one split for all that hang together, and how many such groups the source had in several.

    Without a split of the source it goes by a hash of the text; a group of more than a tenth of all records
    (and FEW) is trained on, for as a test it would be one question asked many times.
    """
    names = owners(records)
    if has_split:
        given, moved = one_per_patient(
            (name, record.split) for name, record in zip(names, records, strict=True)
        )
    else:
        given, moved = assign(names, shares), 0
        sizes = Counter(names)
        large = max(LARGE * len(names), FEW)
        given |= {name: "train" for name, size in sizes.items() if size > large and shares.train > 0}
    return [replace(record, split=given[name]) for name, record in zip(names, records, strict=True)], moved


def limited(records: Sequence[Record], limit: int, seed: int) -> list[Record]:
    """At most `limit` records, whole groups, the same ones every time."""
    names = owners(records)
    kept = chosen(names, limit, seed)
    return [record for name, record in zip(names, records, strict=True) if name in kept]


def settle_tied(sources: Sequence[tuple[str, Sequence[Record]]]) -> tuple[list[Record], int]:
    """Pooled records of (folder, records): ids that cannot collide, and one split for what hangs together.

    Patients of one folder that is read twice are the same people, those of two folders are not.
    """
    homes = sorted({home for home, _ in sources})
    renamed: list[Record] = []
    for number, (home, records) in enumerate(sources):
        mark = f"{homes.index(home)}/" if len(homes) > 1 else ""
        renamed += [_renamed(record, number, mark) for record in records]
    names = owners(renamed)
    given, moved = one_per_patient((name, record.split) for name, record in zip(names, renamed, strict=True))
    return [replace(record, split=given[name]) for name, record in zip(names, renamed, strict=True)], moved


def _renamed(record: Record, number: int, mark: str) -> Record:
    if isinstance(record, Question):
        return replace(record, question_id=f"{number}/{record.question_id}")
    return replace(record, summary_id=f"{number}/{record.summary_id}", patient_id=mark + record.patient_id)
