# SPDX-License-Identifier: Apache-2.0
"""Counts of what reading a site's files did, beside faults: for people, never a patient, note or text.

Nothing here is a fault, and nothing counts against `max_skipped`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

C = TypeVar("C", bound="ReadingCounts")


@dataclass(slots=True, kw_only=True)
class ReadingCounts:
    """Base of counts, whose fields are numbers or Counters."""

    def add(self: C, other: C) -> None:
        """Add another source's counts."""
        for item in fields(self):
            value, added = getattr(self, item.name), getattr(other, item.name)
            if isinstance(value, Counter):
                value.update(added)
            else:
                setattr(self, item.name, value + added)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers above zero, and all Counters with the most frequent first."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: dict(value.most_common()) if isinstance(value, Counter) else value
            for name, value in values.items()
            if value or isinstance(value, Counter)
        }


@dataclass(slots=True, kw_only=True)
class VisitCounts(ReadingCounts):
    """Counts of what was changed or left out on purpose when studies were read as visits.

    Attributes:
        rows_merged: rows that became part of another visit of the day.
        patients_sorted: patients whose rows stood in another order than their days.
        ages_filled, sexes_filled: visits that got these from another visit of the patient.
        visits_beyond: visits after the `most`-th; patients_with_too_few: patients below `fewest`.
    """

    rows_merged: int = 0
    patients_sorted: int = 0
    ages_filled: int = 0
    sexes_filled: int = 0
    visits_beyond: int = 0
    patients_with_too_few: int = 0


@dataclass(slots=True, kw_only=True)
class TextCounts(ReadingCounts):
    """Counts of what was changed or left out on purpose of questions and summaries.

    Attributes:
        too_masked: summaries left out for `most_masks`.
        groups_moved: records that repeat each other or are of one patient, which the source had in several
            splits and which are now in one.
    """

    too_masked: int = 0
    groups_moved: int = 0


@dataclass(slots=True, kw_only=True)
class AnnotationCounts(ReadingCounts):
    """Counts of what the usable notes of a source held before mapping, and of what became no annotation.

    Attributes:
        source_entities, source_relations: by the source's own label.
        entities_dropped: by label; the map says null.
        relations_outside: by label; not a head and one of its modifiers, or linking a dropped entity.
        relations_repeated: by label; a link of two entities that are linked already.
        masked: by type, "relations" for links; the site's `tasks` leave them out.
        lines_left_out: by kind; lines of annotation files that no reader uses (events, attributes, notes).
    """

    source_entities: Counter[str] = field(default_factory=Counter)
    source_relations: Counter[str] = field(default_factory=Counter)
    entities_dropped: Counter[str] = field(default_factory=Counter)
    relations_outside: Counter[str] = field(default_factory=Counter)
    relations_repeated: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    lines_left_out: Counter[str] = field(default_factory=Counter)
