# SPDX-License-Identifier: Apache-2.0
"""Scores of the extraction comparisons, from their predictions, or the counts kept of them, alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from method_comparison.comparison_table import Run
from method_comparison.tasks.note_counts import joined, scores_by_note, was_tested
from method_comparison.tasks.prediction_scores import averaged

PREDICTIONS = "predictions.jsonl"
SCORES = {
    "ner_strict_f1": "NER strict",
    "ner_lenient_f1": "NER lenient",
    "re_gold_strict_f1": "RE strict, gold heads",
    "re_e2e_strict_f1": "RE strict, end to end",
    "parse_failure_rate": "malformed",
}
"""Metric -> its title in tables; what is kept of a test."""


def score(unit: Path, sites: Sequence[str], columns: Sequence[str]) -> Run | None:
    """Return what every note of `sites` adds to each metric; None where a site was not tested.

    Single-site models are averaged over their sources, as the paper does (ML-13).
    """
    sources = sorted({path.parent.parent for path in unit.glob(f"*/{sites[0]}/predictions*")})
    models = sources or [unit]
    files = [[model / site / PREDICTIONS for site in sites] for model in models]
    if not all(was_tested(file) for own in files for file in own):
        return None
    runs = [scored(own, columns) for own in files]
    return Run(averaged([dict(run.scores) for run in runs]), runs[0].groups)


def own_score(unit: Path, sites: Sequence[str], columns: Sequence[str]) -> Run | None:
    """Return every site's own model on its own notes: what a hospital has if it stays alone (ML-13)."""
    files = [unit / site / site / PREDICTIONS for site in sites]
    return scored(files, columns) if all(was_tested(file) for file in files) else None


def scored(files: Sequence[Path], columns: Sequence[str]) -> Run:
    """Return the columns' statistics of the notes of several files; a patient's notes are drawn together."""
    return joined([scores_by_note(file, columns) for file in files])


def matrix(units: Sequence[Path], sites: Sequence[str]) -> str:
    """Return every single-site model on every site's test notes, mean over units; "" of other methods."""
    columns = ("ner_strict_f1", "re_gold_strict_f1")
    sources = [site for site in sites if units and was_tested(units[0] / site / sites[0] / PREDICTIONS)]
    if not sources:
        return ""
    lines = ["| trained at | " + " | ".join(sites) + " |", "|---|" + "---:|" * len(sites)]
    for source in sources:
        cells = [source]
        for site in sites:
            runs = [scored([unit / source / site / PREDICTIONS], columns) for unit in units]
            cells.append(" / ".join(_mean(runs, metric) for metric in columns))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(runs: Sequence[Run], metric: str) -> str:
    values = [run.scores[metric].value for run in runs if metric in run.scores]
    return f"{100 * sum(values) / len(values):.1f}" if values else "-"
