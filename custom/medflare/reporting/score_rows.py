# SPDX-License-Identifier: Apache-2.0
"""Rows and cells of result tables from run records, for the terminal, for Markdown, for pages and as JSON.

Rows are site x system, columns metrics; every cell is a value with its 95 % interval, times 100 as papers
print them. The best system of a site is marked; a footnote says where being best is not significant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medflare.core.run_record import ALL_SITES, ComparisonRecord, Estimate, EvaluationRecord, RunRecord
from medflare.evaluation.statistics import holm
from medflare.reporting.formatting import MISSING
from medflare.reporting.metric_names import CONTROLS, LESS_IS_BETTER, display_name
from medflare.tasks import TASKS

SUMMED = (
    "Under masks only the mean over the sites of a sum is known, so there is one row for all of them and no "
    "interval; each site keeps its own numbers, with intervals, in the folder of its result."
)
ENCRYPTED = (
    "Under homomorphic encryption nobody but a site reads what it measures, so there are no rows; each site "
    "keeps its own numbers, with intervals, in the folder of its result."
)
ZERO_SHOT = "zero-shot"
SCALE = 100.0
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One system on one site's split.

    Attributes:
        task: name of a Task, "" where it is not known yet.
        studies: how many test records were scored.
        metrics: values as fractions.
        skipped: metric -> why it was not computed.
        zero_shot: a method that trains an adapter was tested without one.
    """

    task: str
    method: str
    site: str
    role: str
    adapter: str
    split: str
    studies: int
    metrics: dict[str, Estimate]
    skipped: dict[str, str] = field(default_factory=dict)
    zero_shot: bool = False

    @classmethod
    def of(cls, item: EvaluationRecord, task: str, method: str, trained_adapter: bool = False) -> ScoreRow:
        """Return the row of an evaluation; `trained_adapter`: whether the method trains one."""
        return cls(
            task=task,
            method=method,
            site=item.site,
            role=item.role,
            adapter=item.adapter,
            split=item.split,
            studies=item.studies,
            metrics=item.metrics,
            skipped=item.skipped_metrics,
            zero_shot=item.adapter == "none" and trained_adapter,
        )

    @property
    def system(self) -> str:
        """The name in tables of several methods and in comparisons."""
        if self.zero_shot:
            return f"{self.method} {ZERO_SHOT}"
        return f"{self.method} {self.adapter}" if self.adapter != "none" else self.method

    @property
    def adapter_name(self) -> str:
        """The name in tables of one method: its adapter, or the method where it has none."""
        if self.zero_shot:
            return ZERO_SHOT
        return self.adapter if self.adapter != "none" else self.method

    @property
    def site_name(self) -> str:
        """The site, and whether it took part."""
        return self.site + (" (unseen)" if self.role == "unseen" else "")

    def as_json(self) -> dict[str, Any]:
        """Return plain types, values as fractions."""
        return {
            "site": self.site,
            "role": self.role,
            "system": self.system,
            "method": self.method,
            "adapter": self.adapter,
            "split": self.split,
            "studies": self.studies,
            "metrics": {name: item.model_dump() for name, item in self.metrics.items()},
            "skipped": dict(self.skipped),
        }


def rows_of(records: Iterable[RunRecord]) -> list[ScoreRow]:
    """Return the rows of all runs, sites together, participants before unseen ones."""
    rows = [
        ScoreRow.of(item, record.task, record.method, trained_adapter="adapter" in record.parameters)
        for record in records
        for item in record.evaluations
    ]
    return sorted(rows, key=lambda row: (row.role == "unseen", row.site, row.split))


def why_no_sites(rows: Sequence[ScoreRow], protections: Sequence[str] = ()) -> str:
    """Return why results have no row for each site; nothing where they have.

    Args:
        protections: of the run, as its record lists them.
    """
    if any(row.site == ALL_SITES for row in rows):
        return SUMMED
    return ENCRYPTED if "he" in protections else ""


def records_name(rows: Sequence[ScoreRow]) -> str:
    """Return the word for what was counted: that of the rows' first task, "studies" where none is known."""
    return next((TASKS[row.task].records_name for row in rows if row.task in TASKS), "studies")


def columns_of(rows: Sequence[ScoreRow], wanted: Sequence[str] | None = None) -> list[str]:
    """Return the wanted metrics that at least one row has.

    Args:
        rows: of one or several tasks.
        wanted: metrics in order; None for the headline metrics of the rows' tasks.

    Returns:
        Those that occur, or all metrics of the rows if none of them does.
    """
    if wanted is None:
        tasks = [task for name, task in TASKS.items() if any(row.task == name for row in rows)]
        wanted = [metric for task in tasks for metric in task.headline]
    present = dict.fromkeys(name for row in rows for name in row.metrics)
    return [name for name in dict.fromkeys(wanted) if name in present] or list(present)


def best_rows(rows: Sequence[ScoreRow], metric: str) -> set[int]:
    """Return the places of the rows that are best on their site and split.

    None where a row is alone, and of a control.
    """
    best: set[int] = set()
    if metric in CONTROLS:
        return best
    for site, split in {(row.site, row.split) for row in rows}:
        group = [i for i, r in enumerate(rows) if (r.site, r.split) == (site, split) and metric in r.metrics]
        if len(group) > 1:
            best_of = min if metric in LESS_IS_BETTER else max
            top = best_of(rows[i].metrics[metric].value for i in group)
            best |= {i for i in group if rows[i].metrics[metric].value == top}
    return best


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """One place of a result table.

    Attributes:
        value: times 100, or a dash.
        interval: `[38.1, 42.0]`, or nothing where there is none.
        best: whether the system is the best one of its site.
        note: number of its footnote, 0 for none.
    """

    value: str
    interval: str = ""
    best: bool = False
    note: int = 0

    @property
    def text(self) -> str:
        """`40.2 [38.1, 42.0]`, or a dash."""
        return f"{self.value} {self.interval}".rstrip()


def score_cell(estimate: Estimate | None, best: bool = False, note: int = 0) -> ScoreCell:
    """Return the cell of an estimate; a dash for None."""
    if estimate is None:
        return ScoreCell(MISSING)
    interval = ""
    if estimate.interval is not None:
        low, high = (SCALE * end for end in estimate.interval)
        interval = f"[{low:.1f}, {high:.1f}]"
    return ScoreCell(f"{SCALE * estimate.value:.1f}", interval, best, note)


def difference(value: float, low: float | None, high: float | None) -> ScoreCell:
    """Return a signed difference with its interval where it has one, times 100."""
    interval = "" if low is None or high is None else f"[{SCALE * low:+.1f}, {SCALE * high:+.1f}]"
    return ScoreCell(f"{SCALE * value:+.1f}", interval)


def turned(item: ComparisonRecord) -> ScoreCell:
    """Return the same difference the other way round."""
    low, high = (None if end is None else -end for end in (item.high, item.low))
    return difference(-item.value, low, high)


def footnotes(
    rows: Sequence[ScoreRow], comparisons: Iterable[ComparisonRecord]
) -> dict[tuple[int, str], str]:
    """Return (row, metric) of a best cell -> why it is not significantly better than another system there.

    Args:
        comparisons: of the table, for whose number their p-values are corrected (ST-3).
    """
    notes: dict[tuple[int, str], str] = {}
    items = list(comparisons)
    corrected = holm(dict(enumerate(item.p for item in items)))
    how = f" after Holm for {len(items)} comparisons" if len(items) > 1 else ""
    for place, item in enumerate(items):
        if corrected[place] < SIGNIFICANT:
            continue
        for index in best_rows(rows, item.metric):
            row = rows[index]
            if row.site != item.site or row.system not in (item.ours, item.theirs):
                continue
            ours = row.system == item.ours
            other = item.theirs if ours else item.ours
            size = difference(item.value, item.low, item.high) if ours else turned(item)
            notes[index, item.metric] = (
                f"{display_name(item.metric)} at {item.site}: {row.system} is not significantly better than "
                f"{other} (difference {size.text}, p = {corrected[place]:.2g}{how})."
            )
    return notes


def grid_of(
    rows: Sequence[ScoreRow], metrics: Sequence[str], comparisons: Iterable[ComparisonRecord] = ()
) -> tuple[list[list[ScoreCell]], list[str]]:
    """Return the cells of every row in the order of `metrics`, and the footnotes, numbered from 1."""
    notes = footnotes(rows, [item for item in comparisons if item.metric in metrics])
    numbers: Mapping[tuple[int, str], int] = {key: place for place, key in enumerate(notes, start=1)}
    best = {metric: best_rows(rows, metric) for metric in metrics}
    cells = [
        [
            score_cell(row.metrics.get(metric), index in best[metric], numbers.get((index, metric), 0))
            for metric in metrics
        ]
        for index, row in enumerate(rows)
    ]
    return cells, list(notes.values())
