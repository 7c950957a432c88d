# SPDX-License-Identifier: Apache-2.0
"""The page's results: intervals of the main scores, the table, every score, every condition."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.cohort.records import CONDITIONS
from medflare.evaluation.markup import Html, colours_of, details, figure, heat_table, paragraph, safe, table
from medflare.evaluation.plots import Whisker, interval_chart
from medflare.evaluation.run_record import RunRecord
from medflare.evaluation.tables import (
    CAPTION,
    SCALE,
    Cell,
    Row,
    cell,
    columns_of,
    display_name,
    grid_of,
    rows_of,
)

CHARTED = ("label_f1", "bleu_4", "rouge_l")
PER_CONDITION = "label_f1/"


def site_colours(record: RunRecord) -> dict[str, str]:
    """One colour per site for the whole page, participants first."""
    unseen = sorted({item.site for item in record.evaluations} - set(record.sites))
    return colours_of([*sorted(record.sites), *unseen])


def results(record: RunRecord) -> Html:
    """What the trained adapters are worth on each site's test studies."""
    rows = rows_of([record])
    if not rows:
        return Html(paragraph("No final evaluation has been recorded.", "soft"))
    charted = [name for name in CHARTED if any(name in row.metrics for row in rows)][:2]
    charts = "".join(_chart(rows, name, site_colours(record)) for name in charted)
    return Html(
        paragraph(
            "Generated reports against the radiologists' own, on test studies that no training saw. "
            "The generic adapter is what all sites share; a personalised one stays at its site.",
        )
        + f'<div class="charts">{charts}</div>'
        + _table(record, rows)
        + _comparisons(record)
        + _conditions(rows)
        + _everything(rows)
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


def _table(record: RunRecord, rows: Sequence[Row]) -> Html:
    metrics = columns_of(rows)
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
    head = ["site", "adapter", "studies", *map(display_name, metrics)]
    numbered = "".join(f"<li>{safe(note)}</li>" for note in notes)
    skipped = dict.fromkeys(why for row in rows for why in row.skipped.values())
    return Html(
        table(head, body, caption=CAPTION + " Best adapter of a site in bold.", left=2)
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


def _comparisons(record: RunRecord) -> Html:
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
    return details("Paired comparisons on the same studies", inside)


def _conditions(rows: Sequence[Row]) -> Html:
    """F1 of every condition; a dash where neither side ever speaks of it cannot be told from a zero here."""
    shown = [row for row in rows if any(name.startswith(PER_CONDITION) for name in row.metrics)]
    if not shown:
        return Html("")
    lines: list[tuple[str, list[float | None]]] = []
    for condition in CONDITIONS:
        found = [row.metrics.get(PER_CONDITION + condition) for row in shown]
        lines.append((condition, [None if item is None else item.value for item in found]))
    head = [
        "condition",
        *(f"{row.site} {row.adapter}" if row.adapter != "none" else row.site for row in shown),
    ]
    caption = "F1 × 100 of what the reports say; 0 also where a condition does not occur."
    return details("Which findings are found", heat_table(head, lines, caption=caption))


def _everything(rows: Sequence[Row]) -> Html:
    names = dict.fromkeys(n for row in rows for n in row.metrics if not n.startswith(PER_CONDITION))
    body = [
        [display_name(name), *(_cell(Cell(cell(row.metrics.get(name)))) for row in rows)] for name in names
    ]
    head = ["score", *(f"{row.site} {row.adapter}" for row in rows)]
    return details("All scores", table(head, body, caption=CAPTION))
