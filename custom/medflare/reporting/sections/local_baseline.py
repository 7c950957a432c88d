# SPDX-License-Identifier: Apache-2.0
"""Local baseline: each participant's scores after the federated run beside those of training alone."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.baseline_rows import CAPTION, NOISE, BaselineRow, baseline_rows
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import SCALE, difference
from medflare.reporting.task_pages import TaskPage
from medflare.reporting.views import Table, score_view

LEADS = ("label_f1", "ner_strict_f1", "accuracy", "rouge_l")
"""The sentence is about the first of these that a task has."""


def view(record: RunRecord, page: TaskPage) -> dict[str, Any] | None:
    """Return the data of `local_baseline.html`; None where no site trained alone."""
    if not record.alone:
        return None
    head = ["trained at", "tested at", "adapter", "score", "federated", "alone", "difference"]
    rows = [
        [row.trained_at, row.place, row.adapter, display_name(row.metric), *map(score_view, row.cells)]
        for row in baseline_rows(record, page.columns)
    ]
    return {
        "sentence": summary(record),
        "table": Table(head=head, rows=rows, caption=CAPTION, left=4),
    }


def summary(record: RunRecord) -> str:
    """Return what federating changed at each site that trained alone; "" where none did."""
    if not record.alone:
        return ""
    leading: dict[tuple[str, str, str], BaselineRow] = {}
    for row in baseline_rows(record, LEADS):
        if row.federated is not None:
            leading.setdefault((row.trained_at, row.tested_at, row.adapter), row)
    return " ".join([*filter(None, map(_sentence, leading.values())), NOISE])


def _sentence(row: BaselineRow) -> str:
    """Return what federating changed at the site itself; "" elsewhere or without a paired difference."""
    gap = row.difference
    if row.tested_at != row.trained_at or gap is None or row.federated is None:
        return ""
    change = difference(gap.value, gap.low, gap.high)
    adapter = f" ({row.adapter} adapter)" if row.adapter != "none" else ""
    return (
        f"Federating changed {display_name(row.metric)} at {row.tested_at}{adapter} from "
        f"{SCALE * row.alone.value:.1f} to {SCALE * row.federated.value:.1f}, by {change.text}."
    )
