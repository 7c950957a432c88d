# SPDX-License-Identifier: Apache-2.0
"""What reading studies as visits did beside faults: counts for people, never a patient."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True, kw_only=True)
class VisitCounts:
    """Nothing here is a fault, and nothing counts against `max_skipped`.

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

    def add(self, other: VisitCounts) -> None:
        """Adds another source's counts."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def to_json(self) -> dict[str, int]:
        """What happened at all."""
        return {name: count for name, count in asdict(self).items() if count}
