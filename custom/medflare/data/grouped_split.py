# SPDX-License-Identifier: Apache-2.0
"""Splits of questions and summaries by groups: what is of one patient, or repeats another word for word.

A templated impression stands in hundreds of reports. If one copy is trained on and another one tested, any
model looks good; so all records of such a group are in one split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from medflare.data.pool import choose_within_limit
from medflare.data.records import Question, Summary
from medflare.data.splits import SplitShares, assign_splits, one_split_per_patient

TextRecord = TypeVar("TextRecord", Question, Summary)

LARGE_SHARE, LARGE_COUNT = 0.1, 20
"""A group above this share of all records, and above this number of them, is only trained on."""


def repetition_key(record: Question | Summary) -> str:
    """Return a text that is equal for records that repeat each other, whatever their case and white space."""
    if isinstance(record, Question):
        parts = (record.text, record.answer_text)
    else:
        parts = (record.source, record.target)
    return "\n".join(" ".join(part.lower().split()) for part in parts)


def count_repetitions(records: Sequence[Question | Summary]) -> int:
    """Return how many records repeat one before them."""
    return len(records) - len({repetition_key(record) for record in records})


def group_names(records: Sequence[Question | Summary]) -> list[str]:
    """Return for each record the name of its group: records linked by words or patient, also through others.

    The name is the alphabetically first of the group's texts. It depends on no id and on no order of rows, so
    the hash split of a group stays the same when a source is exported again.
    """
    # Union-find over two kinds of nodes, texts ("w...") and patients ("p..."). A set of texts alone would not
    # do: patient A has texts 1 and 2, patient B has 2 and 3, and so 1 and 3 belong together without anything
    # in common.
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent[key] != key:
            parent[key] = parent[parent[key]]  # halve the path, so that later look-ups are short
            key = parent[key]
        return key

    for record in records:
        words = f"w{repetition_key(record)}"
        parent.setdefault(words, words)
        patient = f"p{record.patient_id}" if isinstance(record, Summary) and record.patient_id else ""
        if not patient:
            continue
        if patient in parent:
            # The smaller root wins. Patients always hang below a text, so every root is a text and the final
            # root is the smallest text of the group, whatever the order of rows.
            low, high = sorted((root(patient), root(words)))
            parent[high] = low
        else:
            parent[patient] = root(words)
    return [root(f"w{repetition_key(record)}") for record in records]


def split_by_group(
    records: Sequence[TextRecord], has_split: bool, shares: SplitShares
) -> tuple[list[TextRecord], int]:
    """Give every group of records one split.

    Args:
        has_split: the source brings a split; groups that it has in several are moved to the most common one.
            Otherwise a hash of the group's text decides, and a large group (LARGE_SHARE, LARGE_COUNT) is
            trained on, because as a test it would be one question asked many times.

    Returns:
        The records with their splits, in the same order; how many groups the source had in several splits.
    """
    names = group_names(records)
    if has_split:
        given, moved = one_split_per_patient(
            (name, record.split) for name, record in zip(names, records, strict=True)
        )
    else:
        given, moved = assign_splits(names, shares), 0
        sizes = Counter(names)
        large = max(LARGE_SHARE * len(names), LARGE_COUNT)
        given |= {name: "train" for name, size in sizes.items() if size > large and shares.train > 0}
    return [replace(record, split=given[name]) for name, record in zip(names, records, strict=True)], moved


def limit_groups(records: Sequence[TextRecord], limit: int, seed: int) -> list[TextRecord]:
    """Return at most `limit` records, whole groups, the same ones every time."""
    names = group_names(records)
    kept = choose_within_limit(names, limit, seed)
    return [record for name, record in zip(names, records, strict=True) if name in kept]


def pool_groups(sources: Sequence[tuple[str, Sequence[TextRecord]]]) -> tuple[list[TextRecord], int]:
    """Pool the records of several sources: ids that cannot collide, and one split for each group.

    Args:
        sources: (folder, records). Patients of one folder that is read twice are the same people, those of
            two folders are not.

    Returns:
        The records of all sources; how many groups had been in several splits.
    """
    folders = sorted({folder for folder, _ in sources})
    renamed: list[TextRecord] = []
    for number, (folder, records) in enumerate(sources):
        prefix = f"{folders.index(folder)}/" if len(folders) > 1 else ""
        renamed += [_renamed(record, number, prefix) for record in records]
    names = group_names(renamed)
    given, moved = one_split_per_patient(
        (name, record.split) for name, record in zip(names, renamed, strict=True)
    )
    return [replace(record, split=given[name]) for name, record in zip(names, renamed, strict=True)], moved


def _renamed(record: TextRecord, number: int, prefix: str) -> TextRecord:
    if isinstance(record, Question):
        return replace(record, question_id=f"{number}/{record.question_id}")
    return replace(record, summary_id=f"{number}/{record.summary_id}", patient_id=prefix + record.patient_id)
