# SPDX-License-Identifier: Apache-2.0
"""Results: intervals of the main scores, the table, scores by type, every score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.charts.intervals import Interval, interval_chart
from medflare.reporting.formatting import sentence_case
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import (
    SCALE,
    ScoreRow,
    columns_of,
    difference,
    grid_of,
    rows_of,
    score_cell,
    why_no_sites,
)
from medflare.reporting.sections import visit_scores
from medflare.reporting.sections.series import site_colours
from medflare.reporting.task_pages import ScoresByType, TaskPage
from medflare.reporting.views import Cell, Disclosure, Figure, HeatTable, Table, heat_table, score_view

FAULT = "fault/"
"""Prefix of the metrics that count one sort of unreadable output."""


def view(record: RunRecord, page: TaskPage) -> dict[str, Any]:
    """Return the data of `results.html`: what the trained adapters are worth on each site's test split."""
    rows = rows_of([record])
    remark = why_no_sites(rows, record.protections)
    if not rows:
        return {"evaluated": False, "remark": remark}
    charted = [name for name in page.charted if any(name in row.metrics for row in rows)]
    table, notes = _table(record, rows, page)
    skipped = dict.fromkeys(why for row in rows for why in row.skipped.values())
    by_type = [(table.title, _scores_by_type(rows, table), table.opened) for table in page.by_type]
    tables = [_comparisons(record, page), visit_scores.by_visit(rows, _system)]
    return {
        "evaluated": True,
        "remark": remark,
        "lead": page.lead,
        "figures": [_figure(rows, name, site_colours(record)) for name in charted[: page.charts]],
        "table": table,
        "notes": notes,
        "skipped": list(skipped),
        "tables": [item for item in tables if item],
        "by_type": [item for item in by_type if item[1]],
        "all_scores": _all_scores(rows, page),
    }


def _figure(rows: Sequence[ScoreRow], metric: str, colours: Mapping[str, str]) -> Figure:
    items = [
        Interval(
            group=row.site_name,
            name=row.adapter_name,
            value=SCALE * row.metrics[metric].value,
            low=SCALE * interval[0],
            high=SCALE * interval[1],
            colour=colours[row.site],
            hollow=row.adapter != "personalised",
        )
        for row in rows
        if metric in row.metrics and (interval := row.metrics[metric].interval) is not None
    ]
    name = display_name(metric)
    drawing = interval_chart(items, f"{name} × 100") if items else None
    return Figure(title=sentence_case(name), drawing=drawing)


def _table(record: RunRecord, rows: Sequence[ScoreRow], page: TaskPage) -> tuple[Table, list[str]]:
    """Return the main table and its footnotes, the first one numbered 1."""
    faults = [m for m in page.faults if any(m in row.metrics and row.metrics[m].value > 0 for row in rows)]
    metrics = columns_of(rows, (*page.columns, *faults))
    cells, notes = grid_of(rows, metrics, record.comparisons)
    body = [
        [row.site_name, row.adapter_name, row.studies, *map(score_view, line)]
        for row, line in zip(rows, cells, strict=True)
    ]
    head = ["site", "adapter", page.task.records_name, *map(display_name, metrics)]
    caption = page.caption + " Best adapter of a site in bold."
    return Table(head=head, rows=body, caption=caption, left=2, style="scores"), notes


def _comparisons(record: RunRecord, page: TaskPage) -> Disclosure | None:
    if not record.comparisons:
        return None
    body = [
        [
            f"{item.ours} − {item.theirs}",
            item.site,
            display_name(item.metric),
            score_view(difference(item.value, item.low, item.high)),
            f"{item.p:.2g}",
        ]
        for item in record.comparisons
    ]
    head = ["difference", "site", "score", "value × 100", "p, not corrected"]
    title = f"Paired comparisons on the same {page.task.records_name}"
    return Disclosure(summary=title, table=Table(head=head, rows=body, left=3))


def _scores_by_type(rows: Sequence[ScoreRow], wanted: ScoresByType) -> HeatTable | None:
    """Return one score of every type; None where no row has any."""
    prefix = wanted.prefix
    shown = [row for row in rows if any(name.startswith(prefix) for name in row.metrics)]
    if not shown:
        return None
    present = {m.removeprefix(prefix) for row in shown for m in row.metrics if m.startswith(prefix)}
    lines: list[tuple[str, list[float | None]]] = []
    for name in wanted.types or sorted(present):
        estimates = [row.metrics.get(prefix + name) for row in shown]
        lines.append((name, [None if item is None else item.value for item in estimates]))
    return heat_table([wanted.column, *map(_system, shown)], lines, caption=wanted.caption)


def _system(row: ScoreRow) -> str:
    return f"{row.site} {row.adapter}" if row.adapter != "none" else row.site


def _all_scores(rows: Sequence[ScoreRow], page: TaskPage) -> Disclosure:
    """Return all scores but those of a type, and the faults of unreadable outputs."""
    names = dict.fromkeys(n for row in rows for n in row.metrics if "/" not in n or n.startswith(FAULT))
    body: list[list[str | Cell]] = [
        [_score_name(name), *(score_view(score_cell(row.metrics.get(name))) for row in rows)]
        for name in names
    ]
    table = Table(head=["score", *map(_system, rows)], rows=body, caption=page.caption)
    return Disclosure(summary="All scores", table=table)


def _score_name(metric: str) -> str:
    if metric.startswith(FAULT):
        return f"outputs with: {display_name(metric.removeprefix(FAULT))}"
    return display_name(metric)
