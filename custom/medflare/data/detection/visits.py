# SPDX-License-Identifier: Apache-2.0
"""The line that a method of visits needs, for a source whose patients come more than once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from medflare.data.detection.guess import CohortGuess
from medflare.data.readers.common import SourceRecords
from medflare.data.settings.formats import FORMATS

PLACED = 0.9
"""Share of the studies of patients who come again that must have a day, or a number, to be ordered by it."""


def with_visits(guess: CohortGuess, source: SourceRecords) -> CohortGuess:
    """Return the guess with `visits` among its optional settings, where the source orders patients' studies.

    It is optional: a site with it reads each study as one of a patient's visits, and rows of one day as a
    fault, which other methods do not need.

    Args:
        source: what is read by the guess.
    """
    if "visits" not in FORMATS.get(guess.format, ()) or "visits" in guess.settings:
        return guess
    counts = Counter(study.patient_id for study in source.studies if study.patient_id)
    again = [study for study in source.studies if counts[study.patient_id] > 1]
    placed = {
        "day": sum(study.day is not None for study in again),
        "visit": sum(study.visit is not None for study in again),
    }
    order = next((name for name, count in placed.items() if count >= PLACED * len(again)), None)
    if not again or order is None:
        return guess
    patients = sum(count > 1 for count in counts.values())
    reason = f"for fedtar and ct2replong: {patients} of {len(counts)} patients come more than once"
    return replace(
        guess,
        optional=guess.optional | {"visits": {"order": order}},
        reasons=guess.reasons | {"visits": reason},
    )
