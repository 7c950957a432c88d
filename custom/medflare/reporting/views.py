# SPDX-License-Identifier: Apache-2.0
"""Data of tables, figures and marks as `templates/macros.html` shows them; the templates escape it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from medflare.reporting.charts.drawing import Drawing
from medflare.reporting.formatting import MISSING
from medflare.reporting.score_rows import ScoreCell


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A short mark in a row of marks.

    Attributes:
        style: CSS classes.
        text: of the mark.
        title: shown on hover.
        sign, meaning: a sign for the eye, and the words that a screen reader says instead of it.
        emphasis: words after the text.
    """

    style: str
    text: str
    title: str = ""
    sign: str = ""
    meaning: str = ""
    emphasis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place of a table that is more than plain text.

    Attributes:
        text: of the cell.
        small: below it.
        strong: whether the text is bold.
        note: number of a footnote, 0 for none.
        code: whether the text is set as code.
        link: a relative address that the text leads to.
        chips: marks instead of text.
    """

    text: str = ""
    small: str = ""
    strong: bool = False
    note: int = 0
    code: bool = False
    link: str = ""
    chips: Sequence[Chip] = ()


def score_view(cell: ScoreCell) -> Cell:
    """Return a score with its interval below it."""
    return Cell(text=cell.value, small=cell.interval, strong=cell.best, note=cell.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the first cell of a row is its heading.

    Attributes:
        head: titles of the columns; no head where all are empty.
        rows: cells, each plain text, a number or a `Cell`.
        caption: above the table.
        style: CSS class.
        left: how many columns are left-aligned.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    style: str = ""
    left: int = 1

    @property
    def row_styles(self) -> list[str]:
        """CSS class of each row; rows of a block with one name show it once."""
        names = [row[0] for row in self.rows]
        return [
            "within" if place and name == names[place - 1] else "first" if names.count(name) > 1 else ""
            for place, name in enumerate(names)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatTable:
    """A table of shares whose cells are shaded.

    Attributes:
        head: titles of the columns, that of the rows' names first.
        rows: (name, cells); a cell is its text and its shade from 0 to 1.
        caption: above the table.
    """

    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    caption: str


def heat_table(
    head: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | None]]],
    *,
    caption: str,
    top: float = 1.0,
) -> HeatTable:
    """Return a table of shares in percent.

    Args:
        head: titles of the columns, that of the rows' names first.
        rows: (name, shares of 1); None has no value.
        caption: above the table.
        top: the share with the darkest shade.
    """

    def cell(value: float | None) -> tuple[str, float]:
        if value is None:
            return MISSING, 0.0
        return f"{100 * value:.0f}", min(max(value / (top or 1), 0), 1)

    cells = [(name, [cell(value) for value in values]) for name, values in rows]
    return HeatTable(head=head, rows=cells, caption=caption)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart with its title; not shown where there is no chart."""

    title: str
    drawing: Drawing | None
    remark: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosure:
    """A table to unfold."""

    summary: str
    table: Table
    opened: bool = False


Facts = Mapping[str, object]
"""Names and values, one line each."""
Legend = Mapping[str, str]
"""Name of a series -> CSS class of its colour."""
