# SPDX-License-Identifier: Apache-2.0
"""Scores and rounds of a run as CSV, one number a line, and its charts as SVG files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup

from medflare.core.run_record import Estimate, RunRecord
from medflare.reporting.sections import training
from medflare.reporting.templating import environment, style_sheet
from medflare.reporting.views import Figure

SCORES = ("run", "site", "role", "adapter", "split", "studies", "metric", "value", "low", "high")
ROUNDS = ("run", "round", "site", "metric", "value")


def scores_csv(record: RunRecord) -> str:
    """Return every score of the final tests with its interval; empty cells where there is none."""
    return _table(
        SCORES,
        (
            [
                record.run_id,
                item.site,
                item.role,
                item.adapter,
                item.split,
                item.studies,
                name,
                *_numbers(score),
            ]
            for item in record.evaluations
            for name, score in item.metrics.items()
        ),
    )


def rounds_csv(record: RunRecord) -> str:
    """Return every number of every round: metrics of sites and their mean, bytes, seconds; rounds from 1."""

    return _table(ROUNDS, ((record.run_id, *row) for row in round_numbers(record)))


def round_numbers(record: RunRecord) -> Iterator[tuple[int, str, str, float]]:
    """Yield (round from 1, site, metric, value) of all numbers; the site is empty for the run itself."""
    for entry in record.rounds:
        number = entry.round + 1
        yield number, "", "seconds", entry.seconds
        for site, values in {**entry.metrics, "mean": entry.mean}.items():
            for name, value in values.items():
                yield number, site, name, value
        for site, traffic in entry.traffic.items():
            yield number, site, "bytes_sent", traffic.sent
            yield number, site, "bytes_received", traffic.received
        for site in entry.absent:
            yield number, site, "absent", 1


def figures(record: RunRecord) -> dict[str, Figure]:
    """Return the training curves of a run by file name, without the suffix."""
    curves = training.curves_view(record)
    if curves is None:
        return {}
    items: Sequence[Figure] = [*curves["figures"], *curves["more"]]
    return {re.sub(r"[^a-z0-9]+", "-", item.title.lower()).strip("-"): item for item in items if item.drawing}


def figure_svg(figure: Figure) -> str:
    """Return a chart as an SVG file of its own, with the page's style sheet inside."""
    assert figure.drawing is not None
    chart = environment().get_template("chart.html").module.chart(figure.drawing)  # type: ignore[attr-defined]
    opening = Markup('<svg xmlns="http://www.w3.org/2000/svg" ')
    style = Markup("<style>{}</style>").format(Markup(style_sheet()))
    return str(chart).replace("<svg ", str(opening), 1).replace(">", f">{style}", 1)


def _numbers(score: Estimate) -> tuple[float, float | None, float | None]:
    return score.value, score.low, score.high


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(head)
    table.writerows(rows)
    return text.getvalue()
