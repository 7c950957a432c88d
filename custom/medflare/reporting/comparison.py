# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what differs in their settings, their scores, and their curves."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import Estimate, EvaluationRecord, RunRecord
from medflare.reporting.charts.lines import line_chart
from medflare.reporting.formatting import MISSING, byte_size, duration, flatten, sentence_case
from medflare.reporting.metric_names import curve_name, display_name
from medflare.reporting.score_rows import SCALE
from medflare.reporting.task_pages import task_page
from medflare.reporting.views import Cell, Figure, Table

NAMES = ("first", "second")
COLOURS = {"first": "s0", "second": "s1"}


def view(first: RunRecord, second: RunRecord, titles: tuple[str, str]) -> dict[str, Any]:
    """Return the data of `compare.html`.

    Args:
        titles: the names of the runs' folders.
    """
    return {
        "titles": titles,
        "legend": COLOURS,
        "settings": _settings(first, second, titles),
        "scores": _scores(first, second, titles),
        "figures": _curves(first, second),
        "one_task": first.task == second.task,
    }


def _settings(first: RunRecord, second: RunRecord, titles: tuple[str, str]) -> Table:
    """Return facts of the runs and the settings that differ; equal settings are left out."""
    ours, theirs = _facts(first), _facts(second)
    rows = [
        [name, ours.get(name, MISSING), theirs.get(name, MISSING)]
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name) != theirs.get(name)
    ]
    return Table(head=["setting", *titles], rows=rows, left=3, caption="What differs; all else is equal.")


def _facts(record: RunRecord) -> dict[str, str]:
    sent = sum(traffic.sent for entry in record.rounds for traffic in entry.traffic.values())
    return {
        "job": record.job,
        "method": record.method,
        "state": record.status,
        "rounds": str(len(record.rounds)),
        "duration": duration(record.seconds),
        "sent by the sites": byte_size(sent),
        "seed": str(record.seed),
        "protections": ", ".join(record.protections) or "none",
        "sites": ", ".join(sorted(record.sites)),
        "ε": MISSING if record.epsilon is None else f"{record.epsilon:.3g}",
        **flatten(record.configuration),
    }


def _scores(first: RunRecord, second: RunRecord, titles: tuple[str, str]) -> Table | None:
    """Return the main scores of both runs where both tested the same site, adapter and split.

    The difference stands without an interval: it takes predictions of the same records, or several seeds, to
    know the noise of a difference.
    """
    ours, theirs = _by_place(first), _by_place(second)
    metrics = [
        name
        for name in task_page(first.task).columns
        if any(name in item.metrics for item in [*ours.values(), *theirs.values()])
    ]
    rows: list[list[object]] = []
    for place in [place for place in ours if place in theirs]:
        for metric in metrics:
            pair = [side[place].metrics.get(metric) for side in (ours, theirs)]
            if any(score is not None for score in pair):
                rows.append(
                    [f"{place[0]} · {place[1]}", display_name(metric), *map(_cell, pair), _gap(*pair)]
                )
    if not rows:
        return None
    caption = (
        "Scores × 100, with the interval of each. The difference has none: two runs of one seed do not tell "
        "the noise of training."
    )
    return Table(head=["site", "score", *titles, "second − first"], rows=rows, left=2, caption=caption)


def _by_place(record: RunRecord) -> dict[tuple[str, str, str], EvaluationRecord]:
    return {(item.site, item.adapter, item.split): item for item in record.evaluations}


def _cell(score: Estimate | None) -> Cell:
    if score is None:
        return Cell(text=MISSING)
    interval = score.interval
    small = "" if interval is None else f"{SCALE * interval[0]:.1f} to {SCALE * interval[1]:.1f}"
    return Cell(text=f"{SCALE * score.value:.1f}", small=small)


def _gap(first: Estimate | None, second: Estimate | None) -> str:
    if first is None or second is None:
        return MISSING
    return f"{SCALE * (second.value - first.value):+.1f}".replace("-", "−")


def _curves(first: RunRecord, second: RunRecord) -> list[Figure]:
    """Return the means over sites of every metric that both runs measured."""
    sides = dict(zip(NAMES, (first, second), strict=True))
    measured = [{name for entry in run.rounds for name in entry.mean} for run in sides.values()]
    figures = []
    for metric in sorted(measured[0] & measured[1]):
        series = {
            side: [(entry.round + 1, entry.mean[metric]) for entry in run.rounds if metric in entry.mean]
            for side, run in sides.items()
        }
        title = curve_name(metric)
        drawing = line_chart(series, COLOURS, title.split(",")[0])
        figures.append(Figure(title=sentence_case(title), drawing=drawing))
    return figures
