# SPDX-License-Identifier: Apache-2.0
"""Result tables of runs for the terminal and for Markdown documents."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from medflare.core.run_record import ComparisonRecord
from medflare.reporting.baseline_rows import CAPTION, NOISE, BaselineRow
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import ScoreCell, ScoreRow, columns_of, grid_of, records_name, why_no_sites

LEADING = ("site", "system")
HEADING = 12
"""Letters of a line of a score's heading, the width of its interval."""


def caption_of(rows: Sequence[ScoreRow]) -> str:
    """Return what values and intervals are, with the word for what was counted; and why sites are missing."""
    parts = [f"Times 100, with 95 % bootstrap intervals over {records_name(rows)}.", why_no_sites(rows)]
    return " ".join(filter(None, parts))


def results_table(
    rows: Sequence[ScoreRow],
    metrics: Sequence[str] | None = None,
    comparisons: Iterable[ComparisonRecord] = (),
    title: str = "",
    protections: Sequence[str] = (),
) -> Table:
    """Return a rich table for the terminal: the interval stands under its value, notes below the table.

    Args:
        rows: one line each.
        metrics: the columns, as far as a row has them; None for the headline metrics of the rows' tasks.
        comparisons: which say where being best is not significant.
        title: above the table.
        protections: of the run that the rows are of; under encryption it has none.
    """
    chosen = columns_of(rows, metrics)
    cells, notes = grid_of(rows, chosen, comparisons)
    numbered = [f"({place}) {text}" for place, text in enumerate(notes, start=1)]
    head = caption_of(rows) + " Best of a site in bold." if rows else why_no_sites(rows, protections)
    caption = Text("\n".join([head, *numbered]))
    table = Table(title=title or None, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for place, name in enumerate([*LEADING, records_name(rows)]):
        table.add_column(name, justify="left" if place < 2 else "right", overflow="fold")
    for name in map(display_name, chosen):
        # A heading is broken at its spaces: it must not be wider than an interval. In a narrow terminal
        # intervals take two lines, and no number is ever cut.
        table.add_column("\n".join(textwrap.wrap(name, HEADING)), justify="right", overflow="fold")
    one_method = len({row.method for row in rows}) == 1
    for index, (row, line) in enumerate(zip(rows, cells, strict=True)):
        last = index + 1 < len(rows) and rows[index + 1].site != row.site
        leading = [row.site_name, row.adapter_name if one_method else row.system, str(row.studies)]
        table.add_row(*map(Text, leading), *map(_rich_cell, line), end_section=last)
    return table


def baseline_table(rows: Sequence[BaselineRow]) -> Table:
    """Return a rich table of what federating changed for sites that then trained alone.

    Args:
        rows: one line each.
    """
    caption = Text(f"{CAPTION} {NOISE}")
    table = Table(
        title="what federating brought", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD
    )
    for place, name in enumerate(["site", "adapter", "score", "federated", "alone", "difference"]):
        table.add_column(name, justify="left" if place < 3 else "right", overflow="fold")
    for row in rows:
        leading = [row.trained_at, row.adapter, display_name(row.metric)]
        table.add_row(*map(Text, leading), *map(_rich_cell, row.cells))
    return table


def _rich_cell(cell: ScoreCell) -> Text:
    mark = f" ({cell.note})" if cell.note else ""
    text = Text(cell.value + mark, style="bold" if cell.best else "")
    return text.append(f"\n{cell.interval}", style="dim not bold") if cell.interval else text
