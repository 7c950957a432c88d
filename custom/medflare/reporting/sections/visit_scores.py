# SPDX-License-Identifier: Apache-2.0
"""Scores visit by visit, of a run over longitudinal cohorts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from medflare.evaluation.visit_metrics import EACH, MEAN
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import ScoreRow, score_cell
from medflare.reporting.views import Disclosure, Table, score_view

SHOWN = ("rouge_l", "cider", "label_f1", "change_f1")
CAPTION = "Times 100, with 95 % intervals over patients; the mean is that of the visits' own values."
_VISIT = re.compile(r"visit_(\d+)/")


def by_visit(rows: Sequence[ScoreRow], name_of: Callable[[ScoreRow], str]) -> Disclosure | None:
    """Return a line for each row and score, a column for each visit; None where no row has visits."""
    numbers = sorted({int(m[1]) for row in rows for name in row.metrics if (m := _VISIT.match(name))})
    if not numbers:
        return None
    lines = []
    for row in rows:
        for metric in SHOWN:
            keys = [*(EACH.format(number, metric) for number in numbers), MEAN.format(metric)]
            if any(key in row.metrics for key in keys):
                cells = [score_view(score_cell(row.metrics.get(key))) for key in keys]
                lines.append([name_of(row), display_name(metric), *cells])
    head = ["site", "score", *(f"visit {number}" for number in numbers), "mean over visits"]
    return Disclosure(summary="Visit by visit", table=Table(head=head, rows=lines, caption=CAPTION, left=2))
