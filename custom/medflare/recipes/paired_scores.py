# SPDX-License-Identifier: Apache-2.0
"""One system's scores minus another's on the same test records, from the predictions of both."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from medflare.core.errors import DataError
from medflare.core.run_record import ComparisonRecord, EvaluationRecord
from medflare.evaluation import extraction_metrics
from medflare.evaluation.predictions import compare_predictions
from medflare.tasks.prediction_files import holds_extraction, read_documents, read_predictions

REPORT_METRICS = ("bleu_1", "bleu_4", "rouge_l", "cider", "label_f1", "label_micro_f1")
EXTRACTION_METRICS = ("ner_strict_f1", "ner_lenient_f1", "re_gold_strict_f1")
REPORT_TASKS = ("reports", "visits")


class ScoredSystem(NamedTuple):
    """A system as tables name it, and its test."""

    name: str
    test: EvaluationRecord


def paired_scores(
    ours: ScoredSystem, theirs: ScoredSystem, *, folder: Path, task: str, seed: int
) -> list[ComparisonRecord]:
    """Return the paired differences of two systems at a site.

    Args:
        folder: of the run's record, to which both name their predictions.
        task: of the run; questions and summaries are not compared.

    Returns:
        Nothing where predictions of both are not here, or are not of the same records: site.yaml may have
        changed between the tests.
    """
    files = [folder / side.test.predictions for side in (ours, theirs) if side.test.predictions]
    if len(files) != 2 or not all(file.is_file() for file in files):
        return []
    if holds_extraction(files[0]):
        return _of_extraction(ours, theirs, files, seed)
    if task not in REPORT_TASKS:
        return []
    first, second = map(read_predictions, files)
    if [item.study_id for item in first] != [item.study_id for item in second]:
        return []
    names = ours.name, theirs.name
    return compare_predictions(names, first, second, site=ours.test.site, metrics=REPORT_METRICS, seed=seed)


def _of_extraction(
    ours: ScoredSystem, theirs: ScoredSystem, files: list[Path], seed: int
) -> list[ComparisonRecord]:
    first, second = map(read_documents, files)
    rows = []
    for metric in EXTRACTION_METRICS:
        if metric not in ours.test.metrics or metric not in theirs.test.metrics:
            continue
        try:
            gap = extraction_metrics.compare(first, second, metric, replicates=1000, seed=seed)
        except DataError:  # other notes, or other annotations of them
            return []
        rows.append(
            ComparisonRecord(
                metric=metric,
                site=ours.test.site,
                ours=ours.name,
                theirs=theirs.name,
                value=gap.value,
                low=gap.low,
                high=gap.high,
                p=gap.p,
            )
        )
    return rows
