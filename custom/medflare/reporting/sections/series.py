# SPDX-License-Identifier: Apache-2.0
"""Colours of sites and exchanges of a run, as several sections show them."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.core.run_record import RoundRecord, RunRecord
from medflare.reporting.charts.drawing import colours_of

LISTED = 60
"""Rounds in a table, the last ones."""


def site_colours(record: RunRecord) -> dict[str, str]:
    """Return one CSS class per site for the whole page, participants first; a sum over them comes last."""
    others = sorted({item.site for item in record.evaluations} - set(record.sites))
    return colours_of([*sorted(record.sites), *others])


def exchanges_of(record: RunRecord) -> list[RoundRecord]:
    """Return the rounds, or the exchanges of rounds that have several."""
    return [each for entry in record.rounds for each in (entry.exchanges or [entry])]


def listed_caption(entries: Sequence[object]) -> str:
    """Return the caption of a table that shows the last rounds of a long run; nothing for a short one."""
    return f"The last {LISTED} of {len(entries)} rounds." if len(entries) > LISTED else ""
