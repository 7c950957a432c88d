# SPDX-License-Identifier: Apache-2.0
"""Local baseline: each participant's scores after the federated run beside those of training alone."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import ComparisonRecord, EvaluationRecord, LocalBaseline, RunRecord
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import SCALE, difference, score_cell
from medflare.reporting.task_pages import TaskPage
from medflare.reporting.views import Table, score_view

NOISE = "One run cannot tell training noise from an effect."
CAPTION = (
    "Times 100, with 95 % bootstrap intervals. Alone: the same job, rounds and steps with this site only. "
    "The difference is paired over the same records and leaves out the noise of training, so nothing is "
    "marked as better."
)
LEADS = ("label_f1", "ner_strict_f1", "accuracy", "rouge_l")
"""The sentence is about the first of these that a task has."""


def view(record: RunRecord, page: TaskPage) -> dict[str, Any] | None:
    """Return the data of `local_baseline.html`; None where no site trained alone."""
    if not record.alone:
        return None
    federated = {_place(item): item for item in record.evaluations}
    rows: list[list[object]] = []
    for baseline in record.alone:
        ours = federated.get(_place(baseline.evaluation))
        shown = [name for name in page.columns if name in baseline.evaluation.metrics]
        rows += [_row(baseline, ours, metric) for metric in shown]
    head = ["trained at", "tested at", "adapter", "score", "federated", "alone", "difference"]
    return {
        "sentence": summary(record),
        "table": Table(head=head, rows=rows, caption=CAPTION, left=4),
    }


def summary(record: RunRecord) -> str:
    """Return what federating changed at each site that trained alone; "" where none did."""
    federated = {_place(item): item for item in record.evaluations}
    pairs = [(baseline, federated.get(_place(baseline.evaluation))) for baseline in record.alone]
    sentences = [_sentence(baseline, ours) for baseline, ours in pairs if ours is not None]
    return " ".join([*filter(None, sentences), NOISE]) if record.alone else ""


def _place(item: EvaluationRecord) -> tuple[str, str, str]:
    return item.site, item.adapter, item.split


def _row(baseline: LocalBaseline, ours: EvaluationRecord | None, metric: str) -> list[object]:
    item = baseline.evaluation
    federated = None if ours is None else ours.metrics.get(metric)
    scores = [score_view(score_cell(side)) for side in (federated, item.metrics.get(metric))]
    gap = _gap(baseline, metric)
    change = score_cell(None) if gap is None else difference(gap.value, gap.low, gap.high)
    where = item.site + (" (unseen)" if item.role == "unseen" else "")
    return [baseline.trained_at, where, item.adapter, display_name(metric), *scores, score_view(change)]


def _gap(baseline: LocalBaseline, metric: str) -> ComparisonRecord | None:
    """Return the paired difference of a score; None where it was not computed."""
    return next((item for item in baseline.differences if item.metric == metric), None)


def _sentence(baseline: LocalBaseline, ours: EvaluationRecord) -> str:
    """Return what federating changed at the site itself; "" elsewhere or without a paired difference."""
    item = baseline.evaluation
    metric = next((name for name in LEADS if name in ours.metrics and name in item.metrics), "")
    gap = _gap(baseline, metric)
    if item.site != baseline.trained_at or gap is None:
        return ""
    before, after = SCALE * item.metrics[metric].value, SCALE * ours.metrics[metric].value
    change = difference(gap.value, gap.low, gap.high)
    adapter = f" ({item.adapter} adapter)" if item.adapter != "none" else ""
    return (
        f"Federating changed {display_name(metric)} at {item.site}{adapter} from {before:.1f} to "
        f"{after:.1f}, by {change.text}."
    )
