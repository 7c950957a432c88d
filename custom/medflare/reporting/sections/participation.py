# SPDX-License-Identifier: Apache-2.0
"""Section on the participation of sites in each round, with the reasons of those that were absent."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.charts.presence import presence_chart
from medflare.reporting.views import Figure, Table

ROUNDS_NAMED = 8
"""Rounds of one reason that are named."""


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `participation.html`; None where there was no round."""
    if not record.rounds:
        return None
    names = sorted({site for entry in record.rounds for site in [*entry.accepted, *entry.absent]})
    absent = {(site, e.round + 1): why for e in record.rounds for site, why in e.absent.items()}
    rows = []
    for site in names:
        reasons = dict.fromkeys(e.absent[site] for e in record.rounds if site in e.absent)
        accepted = sum(site in e.accepted for e in record.rounds)
        in_time = (
            e.accepted[site] for e in reversed(record.rounds) if site in e.accepted and site not in e.late
        )
        notes = [f"{why} ({_named(_absent_in(record, site, why))})" for why in reasons]
        if late := [e.round + 1 for e in record.rounds if site in e.late]:
            notes.append(f"update of an earlier round counted ({_named(late)})")
        joined = f"{accepted} of {len(record.rounds)}"
        rows.append([site, "; ".join(notes) or "never absent", joined, f"{next(in_time, 0):,}"])
    drawing = presence_chart([e.round + 1 for e in record.rounds], names, absent)
    remark = "filled: accepted; cross: absent or rejected"
    head = ["site", "absences", "rounds", "weight (examples)"]
    return {
        "figure": Figure(title="Updates accepted", drawing=drawing, remark=remark),
        "table": Table(head=head, rows=rows, left=2),
    }


def _absent_in(record: RunRecord, site: str, why: str) -> list[int]:
    """Return the rounds, counted from 1, in which a site was absent for that reason."""
    return [e.round + 1 for e in record.rounds if e.absent.get(site) == why]


def _named(rounds: list[int]) -> str:
    """Return rounds as `rounds 1, 4`."""
    more = " …" if len(rounds) > ROUNDS_NAMED else ""
    return ("round " if len(rounds) == 1 else "rounds ") + ", ".join(map(str, rounds[:ROUNDS_NAMED])) + more
