# SPDX-License-Identifier: Apache-2.0
"""Several sources as one cohort (the centralised baseline), and a few whole groups of a large one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from medflare.data.grouped_split import group_names, move_groups
from medflare.data.records import Record
from medflare.data.splits import stable_hash


def limit_records(records: Sequence[Record], limit: int, seed: int) -> list[Record]:
    """Return at most `limit` records of whole groups (at least one group), the same ones every time.

    The order of groups is independent of the one that splits them, so all splits are represented.
    """
    names = group_names(records)
    counts = Counter(names)
    kept: set[str] = set()
    total = 0
    for name in sorted(counts, key=lambda name: stable_hash(f"limit {name}", seed)):
        if total + counts[name] <= limit or not kept:
            kept.add(name)
            total += counts[name]
    return [record for name, record in zip(names, records, strict=True) if name in kept]


def pool_records(sources: Sequence[tuple[str, Sequence[Record]]]) -> tuple[list[Record], int]:
    """Pool the records of several sources: ids that cannot collide, and one split for each group.

    Args:
        sources: (folder, records). Patients of one folder that is read twice are the same people, those of
            two folders are not. The records of a single source stay as they are.

    Returns:
        The records of all sources; how many groups had been in several splits.
    """
    if len(sources) == 1:
        return list(sources[0][1]), 0
    folders = sorted({folder for folder, records in sources if records})
    renamed: list[Record] = []
    for number, (folder, records) in enumerate(sources):
        prefix = f"{folders.index(folder)}/" if records and len(folders) > 1 else ""
        renamed += [record.from_source(f"{number}/", prefix) for record in records]
    return move_groups(renamed, group_names(renamed))
