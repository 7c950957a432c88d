# SPDX-License-Identifier: Apache-2.0
"""Bytes that travelled, beside what arithmetic expects."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.charts.bars import traffic_chart
from medflare.reporting.formatting import MISSING, byte_size, flatten
from medflare.reporting.sections.series import site_colours
from medflare.reporting.views import Facts, Figure, Table

HEAD = ("site", "sent", "received", "sent per round", "expected", "sent / expected")


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `traffic.html`; None where no message was counted."""
    names = sorted({site for entry in record.rounds for site in entry.traffic})
    if not names:
        return None
    sent, received = (
        {site: [getattr(e.traffic.get(site), direction, 0) for e in record.rounds] for site in names}
        for direction in ("sent", "received")
    )
    colours = {site: style for site, style in site_colours(record).items() if site in names}
    colours |= {site: "s7" for site in names if site not in colours}
    drawing = traffic_chart([e.round + 1 for e in record.rounds], sent, received, colours)
    exchanges = max((len(entry.exchanges) for entry in record.rounds), default=0) or 1
    expected = record.expected_bytes_per_direction * exchanges
    rows = []
    for site in names:
        busy = sum(1 for count in sent[site] if count) or 1
        mean = sum(sent[site]) / busy
        compared = [byte_size(expected), f"{mean / expected:.3f}"] if expected else [MISSING, MISSING]
        totals = [byte_size(sum(sent[site])), byte_size(sum(received[site]))]
        rows.append([site, *totals, byte_size(mean), *compared])
    remark = "above the line sent by the sites, below it received by them"
    return {
        "legend": colours,
        "figure": Figure(title="Bytes per round", drawing=drawing, remark=remark),
        "table": Table(head=HEAD, rows=rows),
        "arithmetic": _arithmetic(record),
    }


def _arithmetic(record: RunRecord) -> list[tuple[str, Facts]]:
    """Return the shared parameters of this run, and the sizes that the paper states, next to each other."""
    ours = flatten(record.parameters)
    if record.parameters:
        ours["total"] = f"{sum(record.parameters.values()):,}"
    if up := record.expected_bytes_per_direction:
        down = record.expected_bytes_down or up
        ours["expected per site and direction" if down == up else "expected from a site"] = byte_size(up)
        if down != up:
            ours["expected to a site"] = byte_size(down)
    paper = flatten(record.paper)
    both = [("Shared parameters of this run", ours), ("The paper's own arithmetic", paper)]
    return [(title, facts) for title, facts in both if facts]
