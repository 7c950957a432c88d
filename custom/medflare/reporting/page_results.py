# SPDX-License-Identifier: Apache-2.0
"""The page's results: intervals of the main scores, the table, scores by type, every score."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.core.run_record import RunRecord
from medflare.reporting.html import Html, colours_of, details, figure, heat_table, paragraph, safe, table
from medflare.reporting.page_tasks import Heat, Kind
from medflare.reporting.page_visits import by_visit
from medflare.reporting.plots import Whisker, interval_chart
from medflare.reporting.tables import (
    SCALE,
    Cell,
    Row,
    cell,
    columns_of,
    display_name,
    grid_of,
    rows_of,
)

FAULT = "fault/"


def site_colours(record: RunRecord) -> dict[str, str]:
    """One colour per site for the whole page, participants first."""
    unseen = sorted({item.site for item in record.evaluations} - set(record.sites))
    return colours_of([*sorted(record.sites), *unseen])


def results(record: RunRecord, kind: Kind) -> Html:
    """What the trained adapters are worth on each site's test split."""
    rows = rows_of([record])
    if not rows:
        return Html(paragraph("No final evaluation has been recorded.", "soft"))
    charted = [name for name in kind.charted if any(name in row.metrics for row in rows)][: kind.charts]
    charts = "".join(_chart(rows, name, site_colours(record)) for name in charted)
    return Html(
        paragraph(kind.lead)
        + f'<div class="charts">{charts}</div>'
        + _table(record, rows, kind)
        + _comparisons(record, kind)
        + by_visit(rows, _system)
        + "".join(_by_type(rows, heat) for heat in kind.heats)
        + _everything(rows, kind)
    )


def _chart(rows: Sequence[Row], metric: str, colours: dict[str, str]) -> Html:
    items = [
        Whisker(
            group=row.site + (" (unseen)" if row.role == "unseen" else ""),
            name=row.adapter if row.adapter != "none" else row.method,
            value=SCALE * row.metrics[metric].value,
            low=SCALE * row.metrics[metric].low,
            high=SCALE * row.metrics[metric].high,
            colour=colours[row.site],
            hollow=row.adapter != "personalised",
        )
        for row in rows
        if metric in row.metrics
    ]
    title = display_name(metric)
    return figure(title[:1].upper() + title[1:], interval_chart(items, f"{display_name(metric)} × 100"))


def _table(record: RunRecord, rows: Sequence[Row], kind: Kind) -> Html:
    metrics = columns_of(rows, kind.columns)
    cells, notes = grid_of(rows, metrics, record.comparisons)
    body = [
        [
            row.site + (" (unseen)" if row.role == "unseen" else ""),
            row.adapter if row.adapter != "none" else row.method,
            row.studies,
            *map(_cell, line),
        ]
        for row, line in zip(rows, cells, strict=True)
    ]
    head = ["site", "adapter", kind.unit, *map(display_name, metrics)]
    numbered = "".join(f"<li>{safe(note)}</li>" for note in notes)
    skipped = dict.fromkeys(why for row in rows for why in row.skipped.values())
    return Html(
        table(head, body, caption=kind.caption + " Best adapter of a site in bold.", left=2)
        + (f'<ol class="notes">{numbered}</ol>' if notes else "")
        + (details("Scores that were skipped", _bullets(list(skipped))) if skipped else "")
    )


def _cell(item: Cell) -> Html:
    value, _, interval = item.text.partition(" ")
    shown = f"<strong>{value}</strong>" if item.best else value
    mark = f"<sup>{item.note}</sup>" if item.note else ""
    return Html(f"{shown}{mark}<small>{interval}</small>")


def _bullets(lines: Sequence[str]) -> Html:
    return Html('<ul class="notes">' + "".join(f"<li>{safe(text)}</li>" for text in lines) + "</ul>")


def _comparisons(record: RunRecord, kind: Kind) -> Html:
    if not record.comparisons:
        return Html("")
    body = [
        [
            f"{item.ours} − {item.theirs}",
            item.site,
            display_name(item.metric),
            Html(
                f"{SCALE * item.value:+.1f}<small>[{SCALE * item.low:+.1f}, {SCALE * item.high:+.1f}]</small>"
            ),
            f"{item.p:.2g}",
        ]
        for item in record.comparisons
    ]
    inside = table(["difference", "site", "score", "value × 100", "p"], body, left=3)
    return details(f"Paired comparisons on the same {kind.unit}", inside)


def _by_type(rows: Sequence[Row], heat: Heat) -> Html:
    """One score of every type, as far as a row has any."""
    shown = [row for row in rows if any(name.startswith(heat.prefix) for name in row.metrics)]
    if not shown:
        return Html("")
    lines: list[tuple[str, list[float | None]]] = []
    names = {m.removeprefix(heat.prefix) for row in shown for m in row.metrics if m.startswith(heat.prefix)}
    for name in heat.types or sorted(names):
        found = [row.metrics.get(heat.prefix + name) for row in shown]
        lines.append((name, [None if item is None else item.value for item in found]))
    head = [heat.column, *map(_system, shown)]
    return details(heat.title, heat_table(head, lines, caption=heat.caption), opened=heat.opened)


def _system(row: Row) -> str:
    return f"{row.site} {row.adapter}" if row.adapter != "none" else row.site


def _everything(rows: Sequence[Row], kind: Kind) -> Html:
    names = dict.fromkeys(n for row in rows for n in row.metrics if "/" not in n or n.startswith(FAULT))
    body = [
        [_score_name(name), *(_cell(Cell(cell(row.metrics.get(name)))) for row in rows)] for name in names
    ]
    return details("All scores", table(["score", *map(_system, rows)], body, caption=kind.caption))


def _score_name(metric: str) -> str:
    return (
        f"outputs with: {display_name(metric.removeprefix(FAULT))}"
        if metric.startswith(FAULT)
        else display_name(metric)
    )
