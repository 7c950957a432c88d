# SPDX-License-Identifier: Apache-2.0
"""Splits by groups: what is of one patient, or repeats another question or summary word for word.

A templated impression stands in hundreds of reports. If one copy is trained on and another one tested, any
model looks good; so all records of such a group are in one split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from medflare.data.records import Note, Question, Record, Study, Summary
from medflare.data.settings.cohort import SplitConfig
from medflare.data.splits import assign_splits, one_split_per_patient

LARGE_SHARE, LARGE_COUNT = 0.1, 20
"""A group of texts above this share of all records, and above this number of them, is only trained on."""


def count_repetitions(records: Sequence[Question | Summary]) -> int:
    """Return how many records repeat one before them."""
    return len(records) - len({record.repetition_key for record in records})


def group_names(records: Sequence[Study | Note | Question | Summary]) -> list[str]:
    """Return for each record the name of the group that must be in one split and at one site.

    Studies are grouped by patient. Notes, questions and summaries are linked by words or patient, also
    through others; a note without a patient counts as one. The name of a group is the first, by the alphabet,
    of its patients (notes) or of its texts (questions and summaries). It depends on no order of rows, so the
    hash split of a group stays the same when a source is exported again.
    """
    # Union-find over all links of the records. A set of texts alone would not do: patient A has texts 1 and
    # 2, patient B has 2 and 3, and so 1 and 3 belong together without anything in common.
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent[key] != key:
            parent[key] = parent[parent[key]]  # halve the path, so that later look-ups are short
            key = parent[key]
        return key

    for record in records:
        name, *others = record.links
        parent.setdefault(name, name)
        for link in others:
            if link in parent:
                # The smaller root wins. What a record names second always hangs below what it names first, so
                # the final root is the smallest of these, whatever the order of rows.
                low, high = sorted((root(link), root(name)))
                parent[high] = low
            else:
                parent[link] = root(name)
    return [root(record.links[0]) for record in records]


def split_by_group(
    records: Sequence[Record], has_split: bool, shares: SplitConfig
) -> tuple[list[Record], int]:
    """Give every group of records one split.

    Args:
        has_split: the source brings a split, for all records or for some. These keep it (a new one for all
            would train on what the source keeps for tests), and groups that it has in several splits are
            moved to the most common one. For the others a hash of the group's name decides. Where it decides
            for all, a large group of texts (LARGE_SHARE, LARGE_COUNT) is trained on, because as a test it
            would be one question asked many times.

    Returns:
        The records with their splits, in the same order; how many groups the source had in several splits.
    """
    names = group_names(records)
    if has_split:
        made = assign_splits(
            [n for n, record in zip(names, records, strict=True) if not record.split], shares
        )
        placed = [
            record if record.split else replace(record, split=made[name])
            for name, record in zip(names, records, strict=True)
        ]
        return move_groups(placed, names)
    splits = assign_splits(names, shares)
    large = max(LARGE_SHARE * len(names), LARGE_COUNT)
    sizes = _repetitions(records, names).items()
    splits |= {name: "train" for name, size in sizes if size > large and shares.train > 0}
    return [replace(record, split=splits[name]) for name, record in zip(names, records, strict=True)], 0


def _repetitions(records: Sequence[Study | Note | Question | Summary], names: Sequence[str]) -> Counter[str]:
    """Return group -> how often one of its texts is asked: questions and summaries of the group, or notes of
    the same words. Many notes of one patient are no repetition."""
    sizes = Counter(name for name, record in zip(names, records, strict=True) if record.may_repeat)
    keys = [
        (name, record.repetition_key)
        for name, record in zip(names, records, strict=True)
        if not record.may_repeat and record.repetition_key is not None
    ]
    copies = Counter(key for _, key in keys)
    for name, key in keys:
        sizes[name] = max(sizes[name], copies[key])
    return sizes


def move_groups(records: Sequence[Record], names: Sequence[str]) -> tuple[list[Record], int]:
    """Move groups that are in several splits to one.

    Args:
        names: of the group of each record.

    Returns:
        The records, in the same order; how many groups were moved.
    """
    splits, moved = one_split_per_patient((n, record.split) for n, record in zip(names, records, strict=True))
    return [replace(record, split=splits[name]) for name, record in zip(names, records, strict=True)], moved
