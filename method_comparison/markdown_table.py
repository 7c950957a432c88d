# SPDX-License-Identifier: Apache-2.0
"""A table of methods as Markdown, and beneath it their differences to other methods with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from medflare.evaluation.seed_tests import SeedDifference, significant

Cell = tuple[str, str]
"""Method and metric."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        scale: what values are multiplied by where they are shown.
        tested: whether differences to the reference are given.
    """

    title: str
    scale: float = 100.0
    digits: int = 1
    tested: bool = True

    def show(self, value: float, sign: str = "") -> str:
        """Return a value as it stands in the column; `sign="+"` for a difference."""
        return f"{self.scale * value:{sign}.{self.digits}f}"

    def interval(self, low: float, high: float, sign: str = "") -> str:
        """Return an interval as it stands in the column."""
        return f"[{self.show(low, sign)}, {self.show(high, sign)}]"


def markdown_table(
    titles: Mapping[str, str],
    columns: Mapping[str, Column],
    cells: Mapping[Cell, str],
    gaps: Mapping[Cell, SeedDifference],
    against: Mapping[str, str],
) -> str:
    """Return a row for each method; with two seeds or more also a table of the differences.

    Args:
        titles: method -> heading of its row.
        columns: metric -> its column.
        cells: score with interval; what is missing is shown as -.
        gaps: differences, which stand behind the scores; a star at those that chance does not explain (ST-2).
        against: method -> the method that its differences are to.
    """
    marked = significant(gaps)

    def difference(cell: Cell) -> str:
        star = "*" if cell in marked else ""
        return columns[cell[1]].show(gaps[cell].value, "+") + star

    def score(cell: Cell) -> str:
        text = cells.get(cell, "-")
        return f"{text} ({difference(cell)})" if cell in gaps else text

    def estimate(cell: Cell) -> str:
        gap = gaps.get(cell)
        if gap is None or gap.low is None or gap.high is None:
            return "-"
        return f"{difference(cell)} {columns[cell[1]].interval(gap.low, gap.high, '+')}"

    text = _rows(titles, columns, score)
    tested = {
        metric: columns[metric] for metric in columns if any(estimate((m, metric)) != "-" for m in titles)
    }
    compared = {
        method: f"{title} − {titles[against[method]]}"
        for method, title in titles.items()
        if any(estimate((method, metric)) != "-" for metric in tested)
    }
    if compared:
        text += f"\n\n{DIFFERENCES}\n\n{_rows(compared, tested, estimate)}"
    return text


DIFFERENCES = "Differences, paired by seed, with 95 % t intervals over seeds:"


def _rows(titles: Mapping[str, str], columns: Mapping[str, Column], cell: Callable[[Cell], str]) -> str:
    lines = ["| | " + " | ".join(column.title for column in columns.values()) + " |"]
    lines.append("|---|" + "---:|" * len(columns))
    for method, title in titles.items():
        lines.append("| " + " | ".join([title, *(cell((method, metric)) for metric in columns)]) + " |")
    return "\n".join(lines)
